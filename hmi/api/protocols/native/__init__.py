"""The native protocol of inference: one model, or a list of requests to several. See docs/http.md."""

from __future__ import annotations

from hmi.api.protocols.native.dialect import NATIVE

__all__ = ["NATIVE"]
