"""The command `bench serve`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from bench.harness.commands import FOLDER, Rows, case, given, quick_flag
from bench.harness.rows import progress
from hmi.cli.framework.options import FILE
from hmi.cli.framework.session import CliSession

SECTIONS = "flat, cold, pieces, memory, isolation, peers, … Repeatable."
TRACE = "Write a timeline of the batches to this file, in Chrome's trace format. Choose short runs."


@case(
    click.option("--only", "sections", multiple=True, metavar="SECTION", help=SECTIONS),
    quick_flag("Few tenants and runs"),
    click.option("--tenants", type=click.IntRange(1, 100_000), help="Tenants on disk.  [default: 10000]"),
    click.option("--runs", type=click.IntRange(1, 10_000), help="Repetitions of each ratio.  [default: 7]"),
    click.option("--seconds", type=click.FloatRange(0.05), help="Duration of each repetition.  [default: 2]"),
    click.option("--minutes", type=click.FloatRange(0.01), help="Duration of the mixed load.  [default: 30]"),
    click.option("--cycles", type=click.IntRange(1), help="Loads and evictions.  [default: 10000]"),
    click.option("--answers", type=click.IntRange(1), help="Answers to check.  [default: 1000000]"),
    click.option("--corpus", type=FILE, help="Real text, one document a line."),
    click.option("--packages", type=FOLDER, help="Packages of LitServe and infinity: pip install --target."),
    click.option("--trace", type=click.Path(dir_okay=False, path_type=Path), help=TRACE),
)
def serve(session: CliSession, quick: bool, trace: Path | None, **wanted: Any) -> Rows:
    """Serve up to 10,000 tenants: throughput, cold starts, memory, isolation.

    --data names a folder that keeps the tenants for later runs; 10,000 take 4 GB.
    """
    from dataclasses import replace

    from bench.cases.serve import run as measured
    from bench.cases.serve.plan import QUICK, ServePlan

    plan = replace(QUICK if quick else ServePlan(), **given(wanted))
    with progress(measured.steps(plan)) as report, _traced(trace):
        yield from measured.run(plan, session.data, report)


@contextmanager
def _traced(file: Path | None) -> Iterator[None]:
    """Write a timeline of the work in the context to `file`, if one is given."""
    if file is None:
        yield
        return
    from hmi.execution import trace

    with trace.collected() as timeline:
        yield
    timeline.write(file)
