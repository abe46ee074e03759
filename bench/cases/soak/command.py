"""The command `bench soak`."""

from __future__ import annotations

import click

from bench.harness.commands import Rows, amount, case, quick_flag
from hmi.cli.framework.output import notes
from hmi.cli.framework.session import CliSession


@case(
    amount("--minutes", 30.0, click.FloatRange(0.05), "Duration."),
    amount("--tenants", 100, click.IntRange(2, 10_000), "Tenants."),
    quick_flag("A few tenants and seconds"),
)
def soak(session: CliSession, minutes: float, tenants: int, quick: bool) -> Rows:
    """A server under mixed load for half an hour: wrong and lost answers, memory, p99 by minute."""
    from bench.cases.soak import run as measured
    from bench.cases.soak.ground import SoakPlan

    plan = (
        SoakPlan(0.1, 0.5, 4, 3.0, 1.0, texts=4, flood_s=6.0) if quick else SoakPlan(minutes, tenants=tenants)
    )
    return measured.run(plan, notes.print)
