"""The command `bench floods`."""

from __future__ import annotations

import click

from bench.harness.commands import Rows, amount, case, quick_flag
from hmi.cli.framework.output import notes
from hmi.cli.framework.session import CliSession


@case(
    click.option("--only", multiple=True, metavar="FLOOD", help="short, long, many, exact, … Repeatable."),
    amount("--seconds", 10.0, click.FloatRange(1), "Of a measurement."),
    amount("--rounds", 3, click.IntRange(1, 100), "Of each flood."),
    click.option("--control", is_flag=True, help="Also flood a second server: what the machine alone does."),
    quick_flag("One flood for a second"),
)
def floods(
    session: CliSession, only: tuple[str, ...], seconds: float, rounds: int, control: bool, quick: bool
) -> Rows:
    """Latency of a quiet tenant while another tenant, or a client without a key, floods the server."""
    from bench.cases.floods.run import FloodPlan, run

    plan = (
        FloodPlan(only or ("short",), 1.0, 1, control) if quick else FloodPlan(only, seconds, rounds, control)
    )
    return run(plan, notes.print)
