"""`Kept`: what a job keeps in its folder, in the bucket that servers share.

A server that takes the job over goes on from there. Each attempt at a job has a folder of its own in the
bucket, so a process that lost its job without noticing spoils nothing. The list of its files is put last: a
checkpoint is there as a whole, or the one before is.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from pathlib import Path
from typing import Final

from hmi.core import Progress
from hmi.errors import Damaged
from hmi.model.checked import file_sha256
from hmi.model.files import write_bytes
from hmi.stores.bucket import Bucket
from hmi.stores.shared_folder import LIST, SharedFolder, files_in

log = logging.getLogger("hmi.jobs")
NOT_KEPT: Final = frozenset({"progress.json", "log.txt", "lock"})
INPUT: Final = "input"
_MARK: Final = ".kept"
"""The file that says which checkpoint of the bucket the folder began with, or has last put there."""
_SHARE: Final = 0.1
"""Putting checkpoints takes at most about this part of a job's time."""
LOG_BYTES: Final = 256 << 10
"""The bucket has so much of the end of a job's log."""


class Kept:
    """The checkpoint of one attempt at a job. Methods raise Unavailable if the bucket does not answer."""

    def __init__(self, bucket: Bucket, job: str, attempt: int, folder: Path) -> None:
        """folder: the job's, in the data folder."""
        self._bucket, self._folder = bucket, folder
        self._job, self._attempt = f"jobs/{job}", attempt
        self._listed: dict[str, str] = {}  # of this attempt, in the bucket
        self._known: dict[str, tuple[int, int, str]] = {}  # name -> size, time of the last change, SHA-256
        self._next = float("-inf")  # on the monotonic clock

    def fetch(self) -> bool:
        """Bring what the last attempt kept, unless the folder has it, and what followed it there, already.

        Returns whether anything was brought. A checkpoint that is damaged counts as none. Raises StorageFull.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        for attempt in self._attempts():
            shared = self._of(attempt)
            files = shared.listed()
            if not files:
                continue
            if _read(self._folder / _MARK) == _mark(files):
                return False
            self._clear()
            try:
                shared.fetch(self._folder, files)
            except Damaged as error:
                log.warning("a checkpoint is not used: %s", error)
                self._clear()
                continue
            write_bytes(self._folder / _MARK, _mark(files))
            return True
        return False

    def put(self, *, now: bool = True) -> None:
        """Put the folder's files into the bucket, as far as they changed. now: also if that was just done."""
        began = time.monotonic()
        if not now and began < self._next:
            return
        paths = {
            name: path
            for name, path in files_in(self._folder).items()
            if name not in NOT_KEPT and not name.startswith(f"{INPUT}/")
        }
        files = {name: self._sum(name, path) for name, path in paths.items()}
        fresh = not self._listed
        if files != self._listed:
            self._listed = self._of(self._attempt).put_files(paths, files, self._listed, only=True)
            write_bytes(self._folder / _MARK, _mark(files))
        if fresh:
            # Only earlier ones: this process may have lost the job, and another server may be at a later one.
            old = [name for name in self._names() if _attempt_of(name) < self._attempt]
            self._bucket.remove(old)
        self._next = time.monotonic() + (time.monotonic() - began) / _SHARE

    def tell(self, progress: Progress) -> None:
        """Put the job's progress where other servers read it."""
        self._bucket.write(progress_of(self._job), progress.model_dump_json().encode())

    def put_log(self) -> None:
        """Put the end of the job's log there."""
        path = self._folder / "log.txt"
        if path.is_file():
            self._bucket.write(log_of(self._job), path.read_bytes()[-LOG_BYTES:])

    def _attempts(self) -> list[int]:
        """The attempts that the bucket has something of, the last one first."""
        found = {_attempt_of(name) for name in self._names() if name.endswith(f"/{LIST}")}
        return sorted(found, reverse=True)

    def _names(self) -> list[str]:
        return self._bucket.names(f"{self._job}/kept")

    def _of(self, attempt: int) -> SharedFolder:
        return SharedFolder(self._bucket, f"{self._job}/kept/{attempt}")

    def _sum(self, name: str, path: Path) -> str:
        status = path.stat()
        size, changed, sha256 = self._known.get(name, (-1, -1, ""))
        if (size, changed) != (status.st_size, status.st_mtime_ns):
            sha256 = file_sha256(path)
            self._known[name] = status.st_size, status.st_mtime_ns, sha256
        return sha256

    def _clear(self) -> None:
        """Remove what the folder keeps for a resumed run: it is older, or of another server's."""
        for path in self._folder.iterdir():
            if path.name in NOT_KEPT or path.name == INPUT:
                continue
            if path.is_dir():
                shutil.rmtree(path)
            elif not path.name.startswith(".") or path.name == _MARK:
                path.unlink()


def progress_of(job: str) -> str:
    """The name in the bucket of a job's progress. job: its folder there."""
    return f"{job}/progress.json"


def log_of(job: str) -> str:
    return f"{job}/log.txt"


def _attempt_of(name: str) -> int:
    """The attempt that put a file, by the file's name in the bucket."""
    return int(name.split("/")[3])


def _mark(files: dict[str, str]) -> bytes:
    return json.dumps(files, sort_keys=True).encode()


def _read(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""
