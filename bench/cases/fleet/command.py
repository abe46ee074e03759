"""`bench fleet`: the start of a server with thousands of tenants."""

from __future__ import annotations

import click

from bench.harness.commands import Rows, amount, case, quick_flag
from hmi.cli.framework.output import notes
from hmi.cli.framework.session import CliSession


@case(
    amount("--count", 10_000, click.IntRange(1, 100_000), "Tenants."),
    amount("--starts", 3, click.IntRange(1, 100), "Starts of a server."),
    quick_flag("A few tenants and one start"),
)
def fleet(session: CliSession, count: int, starts: int, quick: bool) -> Rows:
    """Size on disk, time until ready and memory of a server with many tenants.

    --data names a folder that keeps the tenants for later runs; 10,000 take 4 GB. Their models have random
    weights, since training them is not what this measures.
    """
    from bench.cases.fleet.run import FleetPlan, run

    return run(FleetPlan(4, 1, 1.0) if quick else FleetPlan(count, starts), session.data, notes.print)
