"""Tab-separated tables of the Orange family: a name row, a type row, a role row, then the data."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import IO

_FIELD_LIMIT = 10_000_000


def read_table(file: IO[bytes]) -> Iterator[dict[str, str]]:
    """Yield rows as dicts. Rows with another number of fields than the header are skipped."""
    csv.field_size_limit(_FIELD_LIMIT)
    rows = csv.reader(io.TextIOWrapper(file, encoding="utf-8", newline=""), delimiter="\t")
    names = next(rows)
    next(rows)
    next(rows)
    for row in rows:
        if len(row) == len(names):
            yield dict(zip(names, row, strict=True))
