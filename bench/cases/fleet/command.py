"""`bench fleet`: the start of a server with thousands of tenants."""

from __future__ import annotations

import click

from bench.harness.rows import MEASURED_HERE
from hmi.cli.base import FolderCommand, as_json, pass_session
from hmi.cli.output import notes, print_fields, print_json, size
from hmi.cli.session import Session


@click.command(cls=FolderCommand)
@click.option("--count", type=click.IntRange(1, 100_000), default=10_000, show_default=True, help="Tenants.")
@click.option(
    "--starts", type=click.IntRange(1, 100), default=3, show_default=True, help="Starts of a server."
)
@as_json
@pass_session
def fleet(session: Session, count: int, starts: int, as_json: bool) -> None:
    """Size on disk, time until ready and memory of a server with many tenants.

    --data names a data folder with a root. The tenants that it lacks are written into it, 0.4 MB each; their
    models have random weights, since training them is not what this measures.
    """
    session.not_remote(MEASURED_HERE)
    session.require_data_folder(creates=False)
    from bench.cases.fleet.run import measure

    found = measure(session.settings().data, count, notes.print, starts)
    if as_json:
        print_json(found)
        return
    print_fields({name: size(value) if name.endswith("bytes") else value for name, value in found.items()})
