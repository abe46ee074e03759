"""The HTTP edge: one route table that is served, checked and documented; see docs/http.md."""

from __future__ import annotations

from hmi.api.app import create_app
from hmi.api.server import serve

__all__ = ["create_app", "serve"]
