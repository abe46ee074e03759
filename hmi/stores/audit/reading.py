"""Reads pages of the audit log while others append to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hmi.stores.audit.lines import decoded, files

CURSOR_PATTERN = r"\d{8}-\d{4,8}\.\d{1,15}"
MOST_READ = 20_000
"""The most lines that are read for a page."""
Line = dict[str, Any]


@dataclass(frozen=True)
class Page:
    """Some lines of the log, oldest first."""

    lines: list[Line]
    position: str | None
    """The position to read on from, after the last line that was read; None if the log is empty."""
    more: bool
    """True if there are more lines to read now."""


def read_page(
    folder: Path, after: str | None, since: str | None, wanted: Callable[[Line], bool], limit: int
) -> Page:
    """Return up to `limit` lines that are wanted.

    after: the position of an earlier page. since: leave out lines of an earlier time, in the form of
    `hmi.record.now`.
    """
    found: list[Line] = []
    position, day = after, None if since is None else since[:10].replace("-", "")
    for read, (place, line) in enumerate(_lines(folder, after, day)):
        if len(found) == limit or read == MOST_READ:
            return Page(found, position, True)
        position = place
        if line is not None and (since is None or str(line.get("at", "")) >= since) and wanted(line):
            found.append(line)
    return Page(found, position, False)


def _lines(folder: Path, after: str | None, day: str | None) -> Iterator[tuple[str, Line | None]]:
    """Yield (position after the line, line) from a position on; None for a line that cannot be read.

    day: as YYYYMMDD: files of earlier days are left out.
    """
    name, offset = _parsed(after)
    for file in files(folder):
        if file.stem < name or (day is not None and file.name[:8] < day):
            continue
        with file.open("rb") as opened:
            place = offset if file.stem == name else 0
            opened.seek(place)
            for raw in opened:
                if not raw.endswith(b"\n"):
                    break  # a torn line, or one that is being written
                place += len(raw)
                yield f"{file.stem}.{place}", decoded(raw[:-1])


def _parsed(position: str | None) -> tuple[str, int]:
    """The file and the offset of a position. Nothing of it becomes part of a path."""
    if position is None or not re.fullmatch(CURSOR_PATTERN, position):
        return "", 0
    name, _, offset = position.partition(".")
    return name, int(offset)
