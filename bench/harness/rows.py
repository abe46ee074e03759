"""The rows of a benchmark, as a table or as JSON."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hmi.cli.framework.output import notes, print_json, print_table

if TYPE_CHECKING:
    from bench.harness.report import Figure

COLUMNS = {
    "id": "row",
    "value": "value",
    "unit": "unit",
    "goal": "goal",
    "ok": "ok",
    "stretch": "stretch",
    "stretch_ok": "ok",
    "runs": "runs",
    "peer": "against",
}


@contextmanager
def shown(bench: str, as_json: bool) -> Iterator[list[Figure]]:
    """Yield a list for the rows, and show them at the end, even after an error or Ctrl-C."""
    from bench.harness.report import result

    rows: list[Figure] = []
    try:
        yield rows
    finally:
        if rows:
            _show(result(bench, rows), as_json)


def _show(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    print_table(found["rows"], COLUMNS, "nothing was measured")
    for row in found["rows"]:
        if row["why"]:
            notes.print(f"{row['id']}: {row['why']}")


@contextmanager
def progress(steps: int) -> Iterator[Callable[[str], None]]:
    """Yield a function to call as each of `steps` steps begins: it prints the step's number and name."""
    numbers = itertools.count(1)
    yield lambda what: notes.print(f"{next(numbers)}/{steps} {what}")
