"""`hmi serve` and `hmi openapi`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from hmi.cli.base import Command, FolderCommand, as_json, pass_session
from hmi.cli.options import Bytes, Whole
from hmi.cli.session import Session

SETTINGS = ("host", "port", "job_workers", "streams", "pool_bytes", "stages")


@click.command(cls=FolderCommand)
@click.option(
    "--host", help="Address to listen on (default 127.0.0.1; any other needs an administrator's key)."
)
@click.option("--port", type=Whole(0, 65535), help="Port (default 8080; 0 = any free port).")
@click.option("--job-workers", type=Whole(0), help="Jobs that run at a time (default 1).")
@click.option(
    "--streams", type=Whole(1), help="Batches that are computed at a time, one thread each (default 1)."
)
@click.option("--pool-bytes", type=Bytes(), metavar="SIZE", help="Memory for loaded modules, such as 256M.")
@click.option(
    "--stages",
    metavar="STAGES",
    help="Execution stages that may run: auto (default), none, or a list such as exits,tokens.",
)
@pass_session
def serve(session: Session, **given: Any) -> None:
    """Serve the data folder over HTTP until SIGTERM or Ctrl-C."""
    session.not_remote("a server runs there already: leave --url out")
    from hmi.api import serve as run

    session.overrides = {name: given[name] for name in SETTINGS if given[name] is not None}
    session.require_data_folder(creates=True)
    run(session.settings())


@click.command(cls=Command)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the document to this file."
)
@as_json
@pass_session
def openapi(session: Session, out: Path | None, as_json: bool) -> None:
    """Print the OpenAPI 3.1 document of the HTTP API, as JSON: this release's, or with --url a server's."""
    text = _document(session)
    if out is None:
        click.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")


def _document(session: Session) -> str:
    if session.remote:
        with session.calls() as calls:
            return json.dumps(calls.request("GET", "/openapi.json"), indent=1) + "\n"
    from hmi.api.routes import openapi_text

    return openapi_text()
