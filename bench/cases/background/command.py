"""`bench background`: how much a background job slows the answers of a server."""

from __future__ import annotations

import click

from bench.harness.rows import MEASURED_HERE, shown
from hmi.cli.framework.base import FolderCommand, as_json, pass_session
from hmi.cli.framework.output import notes
from hmi.cli.framework.session import CliSession


@click.command(cls=FolderCommand)
@click.option("--seconds", default=6.0, show_default=True, type=click.FloatRange(0.2), help="Of a phase.")
@click.option(
    "--pairs", default=5, show_default=True, type=click.IntRange(1), help="Phases with and without the job."
)
@click.option("--quick", is_flag=True, help="One short pair: shows that the benchmark works.")
@as_json
@pass_session
def background(session: CliSession, seconds: float, pairs: int, quick: bool, as_json: bool) -> None:
    """A server's p50, p99 and throughput without a background job, beside a paced one, and beside one that
    only has the lowest priority."""
    session.not_remote(MEASURED_HERE)
    from bench.cases.background.figures import rows
    from bench.cases.background.run import Plan, run

    plan = Plan(0.5, 1, (0.4,), 4, 2, 400, 0.3, quick=True) if quick else Plan(seconds, pairs)
    with shown("background", as_json) as found:
        found.extend(rows(*run(plan, notes.print)))
