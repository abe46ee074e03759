"""`hmi file`: the files that callers keep on the server for later jobs."""

from __future__ import annotations

from typing import Any

import click

from hmi.cli.framework.base import CommandGroup, as_json, pass_session
from hmi.cli.framework.options import confirm, yes_option
from hmi.cli.framework.output import print_done, print_fields, print_json, print_table, size
from hmi.cli.framework.session import CliSession, segment


@click.group(cls=CommandGroup)
def file() -> None:
    """Files kept for fine-tuning, which OpenAI's clients upload (docs/protocols.md)."""


@file.command("list")
@click.option("--tenant", metavar="NAME", help="An administrator's: list the files of this tenant.")
@as_json
@pass_session
def list_(session: CliSession, tenant: str | None, as_json: bool) -> None:
    """List files, newest first."""
    with session.calls() as calls:
        found = calls.request("GET", "/v1/files", query={"tenant": tenant} if tenant else {})["data"]
    if as_json:
        print_json(found)
        return
    rows = [{**item, "bytes": size(item["bytes"])} for item in found]
    print_table(rows, {"id": "FILE", "filename": "NAME", "bytes": "SIZE", "purpose": "PURPOSE"}, "no files")


@file.command()
@click.argument("name", metavar="FILE")
@as_json
@pass_session
def show(session: CliSession, name: str, as_json: bool) -> None:
    """Show a file."""
    with session.calls() as calls:
        found: dict[str, Any] = calls.request("GET", f"/v1/files/{segment(name)}")
    print_json(found) if as_json else print_fields(found)


@file.command()
@click.argument("name", metavar="FILE")
@yes_option
@as_json
@pass_session
def delete(session: CliSession, name: str, yes: bool, as_json: bool) -> None:
    """Delete a file. Jobs that were started with it keep their copy."""
    path = f"/v1/files/{segment(name)}"
    with session.calls() as calls:
        confirm(f"the file {name}", yes, lambda: calls.request("GET", path))
        found = calls.request("DELETE", path)
    print_done({**found, "deleted": name}, f"{name} is deleted", as_json)
