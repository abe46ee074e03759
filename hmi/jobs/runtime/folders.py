"""A job's folder `jobs/<job>/`: its input, lock, progress and log. It is created before the job's
record and removed after it."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from pydantic import ConfigDict, ValidationError

from hmi.core import Progress, Record
from hmi.errors import InvalidInput, Unavailable
from hmi.jobs.runtime.kept import NOT_KEPT, log_of, progress_of
from hmi.model.files import full_or, sync_folder, write_bytes, write_json
from hmi.stores.bucket import Bucket
from hmi.stores.layout import read_json, try_lock
from hmi.stores.records.job_table import check_job_id, job_id_at
from hmi.stores.shared_folder import SharedFolder

_INPUT = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")
KEPT_AFTER_END = NOT_KEPT


def new_job_id() -> str:
    """A new id. Ids sort by time of creation."""
    return job_id_at(time.time()) + secrets.token_hex(5)


class PinnedPlots(Record):
    """The PLOT versions that a job depends on. They are fixed at its first start, so that a resumed
    run uses the same ones.

    plot: the version that a model is trained on; parent: the one that a build extends.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    plot: str | None = None
    parent: str | None = None

    @property
    def versions(self) -> set[str]:
        return {version for version in (self.plot, self.parent) if version is not None}


class JobFolder:
    """The paths and small files of one job.

    With a bucket, the input is also there until the job ends, so that it outlives this machine's disk.
    """

    def __init__(self, jobs: Path, job: str, bucket: Bucket | None = None) -> None:
        self.path = jobs / check_job_id(job)
        self._bucket, self._place = bucket, f"jobs/{job}"
        self._shared = None if bucket is None else SharedFolder(bucket, self._place)

    def here_only(self) -> JobFolder:
        """The folder without its part in the bucket."""
        return JobFolder(self.path.parent, self.path.name)

    @property
    def input(self) -> Path:
        return self.path / "input"

    @property
    def log(self) -> Path:
        return self.path / "log.txt"

    @property
    def board(self) -> Path:
        """The file of a background job's `Board`."""
        return self.path / ".pacing"

    def create(self, inputs: Mapping[str, Path | bytes], moved_from: Path) -> None:
        """Create the folder with its input, durably. Files below `moved_from` are moved, others copied.

        Raises InvalidInput (an input cannot be read), StorageFull, Unavailable (the bucket); the folder is
        then removed again.
        """
        with self._made():
            for name, source in inputs.items():
                _check_input_name(name)
                _take(source, self.input / name, moved_from)

    def link(self, source: Path, names: Sequence[str], plots: PinnedPlots) -> None:
        """Create the folder with links to these files of another job's input, durably, and pin the versions.

        The files stay as long as one of the two jobs has them. Raises StorageFull, Unavailable (the bucket);
        the folder is then removed again.
        """
        with self._made():
            for name in names:
                _check_input_name(name)
                _link(source / name, self.input / name)
            self.pin(plots)

    @contextmanager
    def _made(self) -> Iterator[None]:
        """Create the folder; the block fills it. Remove it again if that fails."""
        try:
            self.input.mkdir(parents=True)
            yield
            for folder in (self.input, self.path, self.path.parent):
                sync_folder(folder)
            self.share()
        except BaseException as error:
            self.remove()
            if isinstance(error, OSError):
                raise full_or(error, self.path) from error
            raise

    def share(self) -> None:
        """Put the input into the bucket. Raises Unavailable."""
        if self._shared is not None and self.input.is_dir() and any(self.input.iterdir()):
            self._shared.put(self.input)

    def try_lock(self) -> AbstractContextManager[bool]:
        """Take the job's lock; its holder runs the job. Yields False if another process holds it."""
        self.path.mkdir(exist_ok=True)
        return try_lock(self.path / "lock")

    def missing(self, names: list[str]) -> list[str]:
        """Return those of the inputs that are neither on disk nor in the bucket, from which others are
        fetched. Raises Damaged, Unavailable, StorageFull (of the bucket's)."""

        def lacking() -> list[str]:
            return [n for n in names if not (self.input / n).is_file()]

        if self._shared is not None and (lost := lacking()):
            self.input.mkdir(parents=True, exist_ok=True)
            self._shared.fetch(self.input, self._shared.listed().keys() & set(lost))
        return lacking()

    def write_progress(self, progress: Progress) -> None:
        # Not synced: after a power failure nobody needs the figures.
        aside = self.path / f".progress.{os.getpid()}.tmp"
        aside.write_text(progress.model_dump_json())
        aside.replace(self.path / "progress.json")

    def read_progress(self) -> Progress:
        """The last progress written; an empty one if there is none."""
        try:
            return Progress.model_validate(read_json(self.path / "progress.json") or {})
        except ValidationError:
            return Progress()  # written by another release; a running job soon replaces it

    def take_told(self) -> Progress:
        """Bring the progress and the log that another server has put into the bucket, and return the first.

        Raises Unavailable."""
        if self._bucket is not None and self.path.exists():
            for name, read in ((progress_of(self._place), "progress.json"), (log_of(self._place), "log.txt")):
                found = self._bucket.read(name)
                if found is not None:
                    write_bytes(self.path / read, found)
        return self.read_progress()

    def pin(self, plots: PinnedPlots) -> None:
        """Keep these versions from being collected, durably. Raises StorageFull."""
        write_json(self.path / "plan.json", plots.model_dump(exclude_none=True))

    def pinned(self) -> PinnedPlots:
        """The versions that the job depends on; none if it has not begun."""
        try:
            return PinnedPlots.model_validate(read_json(self.path / "plan.json") or {})
        except ValidationError:
            return PinnedPlots()

    def tidy(self) -> None:
        """Remove everything but progress, log and lock file; call it after the job's end. Another
        process may be waiting for the lock."""
        self._unshare()
        # Another process may be doing the same.
        with suppress(FileNotFoundError):
            for path in self.path.iterdir():
                if path.name in KEPT_AFTER_END:
                    continue
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()

    def remove(self) -> None:
        self._unshare()
        # Another process may be removing the same.
        with suppress(FileNotFoundError):
            shutil.rmtree(self.path)

    def _unshare(self) -> None:
        if self._shared is not None and self.input.exists():  # it was not done yet
            with suppress(Unavailable):  # the hourly collection makes up for it
                self._shared.remove()

    def age_s(self) -> float:
        return time.time() - self.path.stat().st_mtime


def pinned_here(jobs: Path) -> set[str]:
    """The PLOT versions that jobs with a folder here depend on."""
    plans = (JobFolder(jobs, path.parent.name) for path in jobs.glob("*/plan.json"))
    return {version for folder in plans for version in folder.pinned().versions}


def _check_input_name(name: str) -> None:
    assert _INPUT.fullmatch(name), f"{name!r} cannot be an input's name"


def _take(source: Path | bytes, target: Path, moved_from: Path) -> None:
    if isinstance(source, bytes):
        target.write_bytes(source)
    elif source.is_relative_to(moved_from):
        # An upload may be moved; a user's own file may not.
        shutil.move(source, target)
    else:
        _copy(source, target)
    with target.open("rb") as file:
        os.fsync(file.fileno())


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV):
            raise
        _copy(source, target)  # this file system has no hard links
        with target.open("rb") as file:
            os.fsync(file.fileno())


def _copy(source: Path, target: Path) -> None:
    try:
        file = source.open("rb")
    except OSError as error:
        raise InvalidInput(
            f"{source} cannot be read ({error.strerror}): check the path", field=target.name
        ) from error
    with file, target.open("wb") as out:
        if source.is_dir():
            raise InvalidInput(f"{source} is a folder: name one file", field=target.name)
        shutil.copyfileobj(file, out, 1 << 20)
