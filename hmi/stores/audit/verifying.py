"""Checks the audit log's chain: whether a line was removed, changed or inserted since it was written."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hmi.stores.audit.lines import DROPPED, FIRST_HASH, OPENED, decoded, files, follows
from hmi.stores.audit.log import HEAD

MOST_FAULTS = 100


@dataclass
class Report:
    """The findings of a check."""

    lines: int = 0
    first: int = 0
    """The number of the first line that is kept."""
    last: int = 0
    hash: str = FIRST_HASH
    """The hash of the last line. Noted elsewhere, it shows later whether the log up to here is unchanged."""
    faults: list[str] = field(default_factory=list)
    """Signs of tampering or damage, a sentence each."""
    notes: list[str] = field(default_factory=list)
    """Remarks that are no faults, such as a line that a killed process has left torn."""


class _Check:
    """A walk through all lines."""

    def __init__(self, heads: dict[int, str]) -> None:
        self.report = Report()
        self._heads = heads
        """Hashes that lines must have, by their numbers."""
        self._torn: str | None = None
        """A torn line whose file is not yet known to be followed by another one."""
        self._before = FIRST_HASH
        self._dropped: dict[int, str] = {}
        """The last lines that were removed with old files, and their hashes."""
        self._start = FIRST_HASH

    def file(self, path: Path) -> None:
        with path.open("rb") as opened:
            for number, raw in enumerate(opened, 1):
                self._line(path.name, number, raw)

    def done(self) -> Report:
        found = self.report
        if self._torn is not None:
            found.notes.append(f"{self._torn}: the next line will be written to a new file")
        if found.first > 1 and self._dropped.get(found.first - 1) != self._start:
            found.faults.append(f"lines 1 to {found.first - 1} are missing, and no line says why")
        for n in sorted(self._heads):
            if n > found.last:
                found.faults.append(f"lines {found.last + 1} to {n} are missing at the end")
            elif n >= found.first and self._heads[n]:
                found.faults.append(f"line {n} is not the one that was noted: the log was rewritten")
        return found

    def _line(self, file: str, number: int, raw: bytes) -> None:
        place = f"{file}, line {number}"
        fields = decoded(raw[:-1]) if raw.endswith(b"\n") else None
        if fields is None:
            self._broken(place, raw)
            return
        n, found = int(fields["n"]), self.report
        if not found.lines:
            found.first, self._start = n, str(fields.get("previous", FIRST_HASH))
            self._before = self._start
        elif n != found.last + 1:
            self._fault(f"{place}: its number is {n} after {found.last}: lines are missing or were inserted")
        if number == 1 and fields.get("event") == OPENED:
            self._opened(place, fields)
        if not follows(raw[:-1], self._before):
            self._fault(f"{place} (number {n}): it was changed, or the one before it was")
        self._before = found.hash = str(fields["hash"])
        found.last, found.lines = n, found.lines + 1
        if self._heads.get(n) == found.hash:
            self._heads[n] = ""
        if fields.get("event") == DROPPED:
            self._dropped[int(fields.get("last", 0))] = str(fields.get("last_hash", ""))

    def _opened(self, place: str, fields: dict[str, Any]) -> None:
        """Check the first line of a file, which tells whether the file before it ends with a torn line."""
        told = int(fields.get("torn_bytes", 0))
        if self._torn is not None:
            self.report.notes.append(f"{self._torn}; {place} says so")
            self._torn = None
        elif told and self.report.lines:
            self._fault(f"{place}: it tells of a torn line of {told} bytes, which is not there")

    def _broken(self, place: str, raw: bytes) -> None:
        if self._torn is not None:
            self._fault(f"{self._torn}, and lines follow it")
        self._torn = f"{place}: {len(raw)} bytes of a line that was not written to its end"

    def _fault(self, text: str) -> None:
        if len(self.report.faults) < MOST_FAULTS:
            self.report.faults.append(text)


def verify(folder: Path, heads: dict[int, str] | None = None) -> Report:
    """Check every line. heads: hashes of lines, by number, that were noted elsewhere."""
    check = _Check({**_head(folder), **(heads or {})})
    for path in files(folder):
        check.file(path)
    return check.done()


def _head(folder: Path) -> dict[int, str]:
    """The line that the log's own note names; {} without a note."""
    try:
        n, found = (folder / HEAD).read_text(encoding="ascii").split()
        return {int(n): found}
    except (OSError, ValueError):
        return {}
