"""The HTTP edge. One route table is served, checked and documented; see docs/http.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hmi.config import Settings

if TYPE_CHECKING:
    from aiohttp import web

__all__ = ["create_app", "serve"]

# The functions import on call: the command line uses small parts of this package and must start quickly.


def create_app(settings: Settings) -> web.Application:
    """Create the whole server as an aiohttp application; see `hmi.api.process.application.create_app`."""
    from hmi.api.process.application import create_app as create

    return create(settings)


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or Ctrl-C; see `hmi.api.process.server.serve`."""
    from hmi.api.process.server import serve as run

    run(settings)
