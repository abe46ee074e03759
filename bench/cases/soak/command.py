"""The command `bench soak`."""

from __future__ import annotations

import click

from bench.harness.rows import MEASURED_HERE, shown
from hmi.cli.framework.base import FolderCommand, as_json, pass_session
from hmi.cli.framework.output import notes
from hmi.cli.framework.session import CliSession


@click.command(cls=FolderCommand)
@click.option("--minutes", default=30.0, show_default=True, type=click.FloatRange(0.05), help="Duration.")
@click.option("--tenants", default=100, show_default=True, type=click.IntRange(2, 10_000), help="Tenants.")
@click.option("--quick", is_flag=True, help="A few tenants and seconds: shows that the benchmark works.")
@as_json
@pass_session
def soak(session: CliSession, minutes: float, tenants: int, quick: bool, as_json: bool) -> None:
    """A server under mixed load for half an hour: wrong and lost answers, memory, p99 by minute."""
    session.not_remote(MEASURED_HERE)
    from bench.cases.soak import run as measured
    from bench.cases.soak.ground import Plan

    plan = Plan(0.1, 0.5, 4, 3.0, 1.0, texts=4, flood_s=6.0) if quick else Plan(minutes, tenants=tenants)
    with shown("soak", as_json) as found:
        found.extend(measured.run(plan, notes.print))
