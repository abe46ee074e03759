"""The command `bench nodes`."""

from __future__ import annotations

import click

from bench.harness.commands import Rows, case, quick_flag
from hmi.cli.framework.output import notes
from hmi.cli.framework.session import CliSession


@case(
    click.option("--bucket", metavar="URL", help="Such as s3://bucket/hmi. Default: a temporary folder."),
    click.option("--simulate", is_flag=True, help="Compare three servers with a simulation of them instead."),
    click.option("--parts", is_flag=True, help="Compare how a corpus is counted by two servers and by one."),
    quick_flag("Few calls, changes and tenants"),
)
def nodes(session: CliSession, bucket: str | None, simulate: bool, parts: bool, quick: bool) -> Rows:
    """Servers that share a bucket. --data names a folder that keeps their tenants for later runs."""
    if simulate:
        from bench.cases.nodes import simulated

        plan = simulated.QUICK if quick else simulated.SimulatedPlan()
        return simulated.run(plan, session.data, notes.print)
    if parts:
        from bench.cases.nodes import parts as counted

        return counted.run(counted.QUICK if quick else counted.PartsPlan(), bucket, session.data, notes.print)
    from bench.cases.nodes.run import QUICK, NodesPlan, run

    return run(QUICK if quick else NodesPlan(), bucket, session.data, notes.print)
