"""The command `bench plot`."""

from __future__ import annotations

from pathlib import Path

import click

from bench.harness.commands import Rows, case, quick_flag
from hmi.cli.framework.options import FILE
from hmi.cli.framework.output import notes
from hmi.cli.framework.progress import job_bar
from hmi.cli.framework.session import CliSession


@case(
    click.option(
        "--corpus", type=FILE, required=True, help="Real text, one document a line; may be compressed."
    ),
    click.option("--root", help="A root of the data folder.  [default: the one that this benchmark imports]"),
    quick_flag("A PLOT of 60 documents"),
)
def plot(session: CliSession, corpus: Path, root: str | None, quick: bool) -> Rows:
    """Build PLOTs of a real corpus with the real jobs; measure hits and times on held-out documents."""
    from bench.cases.plot.run import PlotPlan, run

    session.may_start_jobs()
    plan = PlotPlan(corpus, (50.0,), 60, root) if quick else PlotPlan(corpus, root=root)
    with job_bar() as bar:
        yield from run(plan, session.data, notes.print, bar.show)
