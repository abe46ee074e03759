"""The command `bench store`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from bench.harness.rows import MEASURED_HERE, shown
from hmi.cli.framework.base import FolderCommand, as_json, pass_session
from hmi.cli.framework.options import FILE
from hmi.cli.framework.output import notes
from hmi.cli.framework.session import CliSession


@click.command(cls=FolderCommand)
@click.option("--keys", type=click.IntRange(5_000, 10**8), help="Trigrams in the root.  [default: 1000000]")
@click.option(
    "--quick", is_flag=True, help="20,000 trigrams and few runs: shows that it works, not how fast."
)
@click.option(
    "--dim", "dims", multiple=True, type=click.IntRange(16, 4096), help="Hidden size.  [default: 384, 768]"
)
@click.option("--corpus", type=FILE, help="Real text, one document a line, instead of synthetic text.")
@click.option(
    "--only",
    "sections",
    multiple=True,
    metavar="SECTION",
    help="lookup, peers, cold, index, bulk, publish or live. Repeatable.  [default: all]",
)
@as_json
@pass_session
def store(
    session: CliSession,
    keys: int | None,
    quick: bool,
    dims: tuple[int, ...],
    corpus: Path | None,
    sections: tuple[str, ...],
    as_json: bool,
) -> None:
    """Compare the PLOT store with this machine's limits, LMDB, RocksDB and numpy.

    --data names a folder on the disk to measure.
    """
    session.not_remote(MEASURED_HERE)
    from bench.cases.store import run as measured

    plan = measured.QUICK if quick else measured.Plan()
    plan = replace(
        plan,
        keys=keys or plan.keys,
        dims=dims or plan.dims,
        corpus=corpus,
        sections=sections or plan.sections,
    )
    with shown("store", as_json) as found:
        found.extend(measured.run(plan, session.data, notes.print))
