"""`bench background`: how much a background job slows the answers of a server."""

from __future__ import annotations

import click

from bench.harness.rows import MEASURED_HERE
from hmi.cli.base import FolderCommand, as_json, pass_session
from hmi.cli.output import notes, print_json, print_table
from hmi.cli.session import Session


@click.command(cls=FolderCommand)
@click.option(
    "--seconds", default=6.0, show_default=True, type=click.FloatRange(0.2), help="Duration of a phase."
)
@click.option(
    "--pairs", default=5, show_default=True, type=click.IntRange(1), help="Phases with and without the job."
)
@click.option(
    "--share",
    "shares",
    multiple=True,
    type=click.FloatRange(0.01, 0.95),
    help="A load as a fraction of the capacity; may be repeated.  [default: .1, .4 and .8]",
)
@as_json
@pass_session
def background(
    session: Session, seconds: float, pairs: int, shares: tuple[float, ...], as_json: bool
) -> None:
    """A server's p50, p99 and throughput without a background job, beside a paced one, and beside one that
    only has the lowest priority."""
    session.not_remote(MEASURED_HERE)
    from bench.cases.background import figures
    from bench.cases.background.plan import Plan
    from bench.cases.background.run import run
    from bench.harness.report import result

    plan = Plan(seconds, pairs, shares or Plan.shares)
    capacity, found = run(plan, notes.print)
    if as_json:
        print_json(result("background", list(figures.rows(capacity, found))))
        return
    lines = figures.table(found)
    print_table(lines, {name: name for name in lines[0]}, "nothing was measured")
    notes.print(f"capacity: {capacity:.1f} calls/s")
