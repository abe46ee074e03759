"""`bench background`: how much a background job slows the answers of a server."""

from __future__ import annotations

import click

from bench.harness.commands import Rows, amount, case, quick_flag
from hmi.cli.framework.output import notes
from hmi.cli.framework.session import CliSession


@case(
    amount("--seconds", 6.0, click.FloatRange(0.2), "Of a phase."),
    amount("--pairs", 5, click.IntRange(1), "Phases with and without the job."),
    quick_flag("One short pair"),
)
def background(session: CliSession, seconds: float, pairs: int, quick: bool) -> Rows:
    """A server's p50, p99 and throughput without a background job, beside a paced one, and beside one that
    only has the lowest priority."""
    from bench.cases.background.figures import rows
    from bench.cases.background.run import BackgroundPlan, run

    plan = (
        BackgroundPlan(0.5, 1, (0.4,), 4, 2, 400, 0.3, quick=True)
        if quick
        else BackgroundPlan(seconds, pairs)
    )
    return rows(*run(plan, notes.print))
