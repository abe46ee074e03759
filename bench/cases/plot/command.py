"""The command `bench plot`."""

from __future__ import annotations

from pathlib import Path

import click

from bench.harness.rows import MEASURED_HERE, shown
from hmi.cli.framework.base import FolderCommand, as_json, pass_session
from hmi.cli.framework.options import FILE
from hmi.cli.framework.output import notes
from hmi.cli.framework.progress import job_bar
from hmi.cli.framework.session import CliSession


@click.command(cls=FolderCommand)
@click.option("--corpus", type=FILE, required=True, help="Real text, one document a line; may be compressed.")
@click.option("--root", help="A root of the data folder.  [default: the one that this benchmark imports]")
@click.option("--quick", is_flag=True, help="A PLOT of 60 documents: shows that it works, not how fast.")
@as_json
@pass_session
def plot(session: CliSession, corpus: Path, root: str | None, quick: bool, as_json: bool) -> None:
    """Build PLOTs of a real corpus with the real jobs; measure hits and times on held-out documents."""
    session.not_remote(MEASURED_HERE)
    from bench.cases.plot.run import Plan, run

    session.may_start_jobs()
    plan = Plan(corpus, (50.0,), 60, root) if quick else Plan(corpus, root=root)
    with shown("plot", as_json) as found, job_bar() as bar:
        found.extend(run(plan, session.data, notes.print, bar.show))
