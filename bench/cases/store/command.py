"""The command `bench store`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from bench.harness.commands import Rows, case, given, quick_flag
from hmi.cli.framework.options import FILE
from hmi.cli.framework.output import notes
from hmi.cli.framework.session import CliSession

SECTIONS = (
    "lookup, peers, cold, index, bulk, publish, deep, appends, walks, domains, remote or live. Repeatable.  "
    "[default: all]"
)


@case(
    click.option(
        "--keys", type=click.IntRange(5_000, 10**8), help="Trigrams in the root.  [default: 1000000]"
    ),
    quick_flag("20,000 trigrams and few runs"),
    click.option(
        "--dim",
        "dims",
        multiple=True,
        type=click.IntRange(16, 4096),
        help="Hidden size.  [default: 384, 768]",
    ),
    click.option("--corpus", type=FILE, help="Real text, one document a line, instead of synthetic text."),
    click.option(
        "--place", metavar="URL", help="A place for section remote, as s3://….  [default: a folder]"
    ),
    click.option("--only", "sections", multiple=True, metavar="SECTION", help=SECTIONS),
)
def store(session: CliSession, quick: bool, **wanted: Any) -> Rows:
    """Compare the PLOT store with this machine's limits, LMDB, RocksDB and numpy.

    --data names a folder on the disk to measure.
    """
    from bench.cases.store import run as measured

    plan = measured.QUICK if quick else measured.StorePlan()
    return measured.run(replace(plan, **given(wanted)), session.data, notes.print)
