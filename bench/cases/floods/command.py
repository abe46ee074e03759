"""The command `bench floods`."""

from __future__ import annotations

import click

from bench.harness.rows import MEASURED_HERE, shown
from hmi.cli.framework.base import FolderCommand, as_json, pass_session
from hmi.cli.framework.output import notes
from hmi.cli.framework.session import CliSession


@click.command(cls=FolderCommand)
@click.option("--only", multiple=True, metavar="FLOOD", help="short, long, many, exact, … Repeatable.")
@click.option(
    "--seconds", default=10.0, show_default=True, type=click.FloatRange(1), help="Of a measurement."
)
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1, 100), help="Of each flood.")
@click.option("--control", is_flag=True, help="Also flood a second server: what the machine alone does.")
@click.option("--quick", is_flag=True, help="One flood for a second: shows that the benchmark works.")
@as_json
@pass_session
def floods(
    session: CliSession,
    only: tuple[str, ...],
    seconds: float,
    rounds: int,
    control: bool,
    quick: bool,
    as_json: bool,
) -> None:
    """Latency of a quiet tenant while another tenant, or a client without a key, floods the server."""
    session.not_remote(MEASURED_HERE)
    from bench.cases.floods import run as measured

    plan = measured.Plan(only, seconds, rounds, control)
    if quick:
        plan = measured.Plan(only or ("short",), 1.0, 1, control)
    with shown("floods", as_json) as found:
        found.extend(measured.run(plan, notes.print))
