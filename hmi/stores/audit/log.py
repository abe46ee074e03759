"""Appends to the audit log. Several processes may do so at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hmi.core import now
from hmi.errors import StorageFull
from hmi.model.files import full_or, sync_folder
from hmi.stores.audit.lines import DROPPED, FIRST_HASH, OPENED, decoded, encoded, files, next_name
from hmi.stores.layout import wait_lock

FILE_BYTES = 64 << 20
"""A file that is larger is followed by another one of the same day."""
RESERVE_BYTES = 1 << 18
"""Room for the outcomes of changes that have begun, kept for a full disk."""
HEAD = "head"
"""The file with the number and the hash of the newest line. It shows when lines at the end were removed."""
TAIL_BYTES = 1 << 16
Event = Mapping[str, Any]


@dataclass(frozen=True)
class End:
    """The end of the log: its newest file, and the last whole line."""

    file: Path | None = None
    size: int = 0
    """Bytes of the file."""
    n: int = 0
    """The number of the last line; 0: there is none."""
    hash: str = FIRST_HASH
    torn: int = 0
    """Bytes after the last whole line, which a killed process or a full disk has left."""


class AuditLog:
    """The audit log of one data folder. Thread-safe. It opens nothing until it is used."""

    def __init__(self, folder: Path, file_bytes: int = FILE_BYTES) -> None:
        self.folder, self._file_bytes = folder, file_bytes
        self._lock = threading.Lock()
        self._end = End()
        self._fd = -1

    def append(self, events: Sequence[Event], *, sync: bool, must: bool = False) -> int:
        """Append a line for each event, all or none. Returns the number of the last one.

        sync: return when they are durable. must: use the reserve on a full disk. Raises StorageFull, OSError.
        """
        with self._lock:
            try:
                return self._locked(events, sync, must)
            except OSError as error:
                raise full_or(error, self.folder) from error

    def drop_old(self, days: int) -> list[str]:
        """Remove files whose day is more than `days` days ago, and return their names. The newest file stays.

        A line of the log says what was removed, so that this does not look like tampering.
        """
        today = datetime.now(UTC) - timedelta(days=days)
        with self._lock, self._exclusive():
            old = [f for f in files(self.folder)[:-1] if f.name[:8] < today.strftime("%Y%m%d")]
        ends = [_end_of(file) for file in old]
        if not ends:
            return []
        last = max(ends, key=lambda end: end.n)
        names = [file.name for file in old]
        about = {"files": len(names), "through": names[-1]}
        self.append(
            [{"event": DROPPED, "who": "server", "object": about, "last": last.n, "last_hash": last.hash}],
            sync=True,
        )
        for file in old:
            file.unlink(missing_ok=True)
        return names

    def close(self) -> None:
        with self._lock:
            self._close_file()

    def _locked(self, events: Sequence[Event], sync: bool, must: bool) -> int:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._exclusive():
            self._refresh()
            try:
                self._append(events)
            except StorageFull:
                if not must:
                    raise
                (self.folder / "reserve").unlink(missing_ok=True)
                self._refresh()
                self._append(events)
            if sync:
                os.fsync(self._fd)
            self._note_head()
            return self._end.n

    def _append(self, events: Sequence[Event]) -> None:
        self._roll_if_due()
        n, found, lines = self._end.n, self._end.hash, []
        for event in events:
            n += 1
            line, found = encoded({"n": n, "at": now(), **event}, found)
            lines.append(line)
        data = b"".join(lines)
        self._write(data)
        self._end = End(self._end.file, self._end.size + len(data), n, found)

    def _exclusive(self) -> Any:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return wait_lock(self.folder / ".lock")

    def _refresh(self) -> None:
        """Find the end of the log anew if another process has appended to it."""
        newest = next(iter(files(self.folder)[-1:]), None)
        if newest == self._end.file and self._fd >= 0 and os.fstat(self._fd).st_size == self._end.size:
            return
        self._close_file()
        self._end = find_end(self.folder)
        if self._end.file is not None:
            self._fd = os.open(self._end.file, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def _roll_if_due(self) -> None:
        """Begin a new file: each day, when the newest is large, and after a torn line, which stays."""
        end, today = self._end, now()[:10].replace("-", "")
        name = None if end.file is None else end.file.name
        whole = name is not None and name[:8] >= today and not end.torn
        if whole and 0 < end.size < self._file_bytes:
            return
        file = self.folder / next_name(name, today)
        fields = {"n": end.n + 1, "at": now(), "event": OPENED, "who": "server", "previous": end.hash}
        data, found = encoded({**fields, "torn_bytes": end.torn or None}, end.hash)
        self._close_file()
        self._fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._end = End(file, 0, end.n, end.hash)
        try:
            self._write(data)
        except BaseException:
            self._close_file()
            file.unlink()
            raise
        self._end = End(file, len(data), end.n + 1, found)
        sync_folder(self.folder)

    def _write(self, data: bytes) -> None:
        """Write all or nothing. Raises StorageFull, OSError."""
        try:
            done = 0
            while done < len(data):
                done += os.write(self._fd, data[done:])
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._fd, self._end.size)
            raise full_or(error, self.folder) from error

    def keep_reserve(self) -> None:
        """Make sure that a change may begin: that there is room for its outcome, too. Raises StorageFull."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._keep_reserve()
        except OSError as error:
            raise full_or(error, self.folder) from error

    def _keep_reserve(self) -> None:
        """Make the reserve if it is gone."""
        path = self.folder / "reserve"
        if path.exists():
            return
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, RESERVE_BYTES)
        except OSError as error:
            path.unlink()
            raise full_or(error, path) from error
        finally:
            os.close(fd)

    def _note_head(self) -> None:
        """Write the number and the hash of the newest line beside the log. A process that is killed before
        this leaves those of an earlier line, which is still in the log."""
        fd = os.open(self.folder / HEAD, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with suppress(OSError):  # a full disk: the head is then that of an earlier line
                os.pwrite(fd, f"{self._end.n:020d} {self._end.hash}\n".encode(), 0)
        finally:
            os.close(fd)

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def find_end(folder: Path) -> End:
    """Return the end of the log, by its newest file that has a whole line."""
    found = files(folder)
    torn = 0
    for file in reversed(found):
        end = _end_of(file)
        if end.n:
            # Files after it, which have no whole line, count as torn: their bytes follow the last whole line.
            return End(found[-1], found[-1].stat().st_size, end.n, end.hash, end.torn + torn)
        torn += end.torn
    return End(found[-1] if found else None, torn=torn)


def _end_of(file: Path) -> End:
    """Return the last whole line of one file. Reads only its end, unless that has no whole line."""
    size = file.stat().st_size
    for window in (TAIL_BYTES, size):
        with file.open("rb") as opened:
            opened.seek(max(0, size - window))
            *lines, rest = opened.read(min(window, size)).split(b"\n")
        torn = len(rest)
        for line in reversed(lines):
            fields = decoded(line)
            if fields is not None:
                return End(file, size, fields["n"], fields["hash"], torn)
            torn += len(line) + 1
    return End(file, size, torn=size)
