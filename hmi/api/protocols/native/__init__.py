"""The native protocol of inference: a call to one model, or to several. See docs/http.md."""

from __future__ import annotations

from hmi.api.protocols.native.dialect import NATIVE

__all__ = ["NATIVE"]
