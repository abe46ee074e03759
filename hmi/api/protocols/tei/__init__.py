"""The calls of text-embeddings-inference. See docs/protocols.md."""

from __future__ import annotations

from hmi.api.protocols.tei.dialect import TEI

__all__ = ["TEI"]
