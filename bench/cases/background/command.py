"""`bench background`: how much a background job slows the answers of a server."""

from __future__ import annotations

from dataclasses import replace

import click

from bench.harness.commands import Rows, amount, case, quick_flag
from hmi.cli.framework.output import notes
from hmi.cli.framework.session import CliSession


@case(
    amount("--seconds", 6.0, click.FloatRange(0.2), "Of a phase."),
    amount("--pairs", 5, click.IntRange(1), "Phases with and without it."),
    click.option("--writers", is_flag=True, help="Models that write run beside, not a job."),
    quick_flag("One short pair"),
)
def background(session: CliSession, seconds: float, pairs: int, writers: bool, quick: bool) -> Rows:
    """A server's p50, p99 and throughput without a background job, beside a paced one, and beside one that
    only has the lowest priority. With --writers: alone, and beside 16 models that write."""
    from bench.cases.background.figures import rows
    from bench.cases.background.run import TRAINING, WRITING, BackgroundPlan, run

    plan = (
        BackgroundPlan(0.5, 1, (0.4,), 4, 2, 400, 0.3, quick=True)
        if quick
        else BackgroundPlan(seconds, pairs)
    )
    plan = replace(plan, neighbour=WRITING if writers else TRAINING)
    return rows(plan.neighbour, *run(plan, notes.print))
