"""`hmi serve` and `hmi openapi`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hmi.cli.base import Command, pass_session
from hmi.cli.session import Session
from hmi.errors import InvalidInput

SETTINGS = ("host", "port", "job_workers", "streams", "pool_bytes")


@click.command(cls=Command)
@click.option("--host", help="Address to listen on (default 127.0.0.1; others need an administrator's key).")
@click.option("--port", type=click.IntRange(0, 65535), help="Port (default 8080; 0 = any that is free).")
@click.option("--job-workers", type=int, help="Jobs that run at once (default 1).")
@click.option("--streams", type=int, help="Batches that compute at once, one thread each (default 1).")
@click.option("--pool-bytes", type=int, help="Memory for resident adapters, in bytes.")
@pass_session
def serve(session: Session, **given: Any) -> None:
    """Serve the data folder over HTTP until SIGTERM or Ctrl-C."""
    if session.remote:
        raise InvalidInput("--url names a server that runs already: leave it out")
    from hmi.api import serve as run

    session.overrides = {name: given[name] for name in SETTINGS if given[name] is not None}
    run(session.settings())


@click.command(cls=Command)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write it there.")
def openapi(out: Path | None) -> None:
    """Print the OpenAPI 3.1 document of the HTTP API."""
    from hmi.api.routes import openapi_text

    text = openapi_text()
    if out is None:
        click.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")
