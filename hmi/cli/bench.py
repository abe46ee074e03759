"""`hmi bench`: measurements on this machine, as a table or as JSON."""

from __future__ import annotations

import click

from hmi.cli.base import Group, as_json
from hmi.cli.output import notes, print_json, print_table

COLUMNS = {"id": "row", "value": "value", "unit": "unit", "goal": "goal", "ok": "ok", "runs": "runs", "peer": "against"}


@click.group(cls=Group)
def bench() -> None:
    """Measurements: medians of paired, interleaved runs."""


@bench.command()
@click.option("--runs", default=21, show_default=True, type=click.IntRange(3, 10_000), help="Pairs for each ratio.")
@as_json
def path(runs: int, as_json: bool) -> None:
    """What replacing the lower layers buys, on the default root and one thread."""
    from hmi.bench import path as measured
    from hmi.bench.report import result

    found = result("path", measured.run(runs, notes.print))
    if as_json:
        print_json(found)
    else:
        print_table(found["rows"], COLUMNS, "nothing was measured")
