"""`bench fleet`: the start of a server with thousands of tenants."""

from __future__ import annotations

import click

from bench.harness.rows import MEASURED_HERE, shown
from hmi.cli.framework.base import FolderCommand, as_json, pass_session
from hmi.cli.framework.output import notes
from hmi.cli.framework.session import CliSession


@click.command(cls=FolderCommand)
@click.option("--count", type=click.IntRange(1, 100_000), default=10_000, show_default=True, help="Tenants.")
@click.option(
    "--starts", type=click.IntRange(1, 100), default=3, show_default=True, help="Starts of a server."
)
@click.option("--quick", is_flag=True, help="A few tenants and one start: shows that the benchmark works.")
@as_json
@pass_session
def fleet(session: CliSession, count: int, starts: int, quick: bool, as_json: bool) -> None:
    """Size on disk, time until ready and memory of a server with many tenants.

    --data names a folder that keeps the tenants for later runs; 10,000 take 4 GB. Their models have random
    weights, since training them is not what this measures.
    """
    session.not_remote(MEASURED_HERE)
    from bench.cases.fleet.run import Plan, run

    with shown("fleet", as_json) as found:
        found.extend(run(Plan(4, 1, 1.0) if quick else Plan(count, starts), session.data, notes.print))
