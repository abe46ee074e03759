"""The command `bench plot`."""

from __future__ import annotations

from pathlib import Path

import click

from bench.harness.rows import MEASURED_HERE, shown
from hmi.cli.base import FolderCommand, as_json, pass_session
from hmi.cli.options import FILE
from hmi.cli.output import notes
from hmi.cli.progress import job_bar
from hmi.cli.session import Session


@click.command(cls=FolderCommand)
@click.option(
    "--corpus", type=FILE, required=True, help="Real text, one document a line; gzip and zstd are read."
)
@click.option("--root", help="A root of the data folder.  [default: the one that this benchmark imports]")
@click.option(
    "--alpha",
    "alphas",
    multiple=True,
    type=click.FloatRange(1, 100),
    help="Percent of n-gram occurrences to cover. Repeatable.  [default: 50, 100]",
)
@click.option(
    "--minutes", type=click.FloatRange(min=0.5), help="Use as many documents as should take this long."
)
@click.option("--limit-documents", type=click.IntRange(min=2), help="Use at most this many documents.")
@as_json
@pass_session
def plot(
    session: Session,
    corpus: Path,
    root: str | None,
    alphas: tuple[float, ...],
    minutes: float | None,
    limit_documents: int | None,
    as_json: bool,
) -> None:
    """Build PLOTs of a real corpus with the real jobs; measure hits and times on held-out documents."""
    session.not_remote(MEASURED_HERE)
    from bench.cases.plot import corpus as measured

    session.may_start_jobs()
    plan = measured.Plan(corpus, alphas or (50.0, 100.0), minutes, limit_documents, root)
    with shown("plot", as_json) as found, job_bar() as bar:
        found.extend(measured.run(plan, session.data, notes.print, bar.show))
