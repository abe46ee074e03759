"""The data folder: its paths and format number, locks between processes, cleaning up after crashes."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hmi.config import Settings
from hmi.errors import Damaged, InvalidInput
from hmi.model.files import full_or, write_bytes
from plot_store.ground.holding import HOLDING

FORMAT = 2
"""The format of data folders that this release writes. In format 1 the registry had no checksums."""


@dataclass(frozen=True)
class Layout:
    """Paths in one data folder. Callers must check names before they become parts of a path."""

    data: Path

    @property
    def registry(self) -> Path:
        return self.data / "registry"

    @property
    def plots(self) -> Path:
        return self.data / "plots"

    @property
    def roots(self) -> Path:
        return self.data / "roots"

    def root(self, name: str, version: str) -> Path:
        """The folder of a root's version."""
        return self.roots / name / version

    @property
    def profiles(self) -> Path:
        return self.data / "profiles"

    @property
    def exits(self) -> Path:
        """The folder of states of early exits that an engine wrote when it stopped, for the next one."""
        return self.data / "exits"

    def cascades(self, which: str) -> Path:
        """The file of the evidence of cascades (`inside` one root, or of `two`), which an engine wrote when
        it stopped, for the next one."""
        return self.data / "cascades" / which

    def profiles_of(self, root: str, version: str) -> Path:
        """The measured times of the executors of a root's version: a file for each machine."""
        return self.profiles / root / version

    @property
    def lowers(self) -> Path:
        return self.data / "lowers"

    @property
    def samples(self) -> Path:
        """Samples of domains' corpora."""
        return self.data / "samples"

    @property
    def adapters(self) -> Path:
        return self.data / "adapters"

    @property
    def jobs(self) -> Path:
        return self.data / "jobs"

    @property
    def misses(self) -> Path:
        """Recorded misses, for domains that record them."""
        return self.data / "misses"

    @property
    def files(self) -> Path:
        """Files that callers keep for later jobs, by their ids."""
        return self.data / "files"

    @property
    def audit(self) -> Path:
        """The audit log."""
        return self.data / "audit"

    @property
    def incoming(self) -> Path:
        """Uploads that no job has taken over yet."""
        return self.data / "incoming"

    @property
    def uploads(self) -> Path:
        """Files that the operator provides, which a call may name by their path."""
        return self.data / "uploads"

    @property
    def format(self) -> Path:
        """The file with the folder's format number."""
        return self.data / "FORMAT"

    @property
    def server_lock(self) -> Path:
        """Held by the server that owns the folder."""
        return self.data / "server.lock"

    @property
    def server_note(self) -> Path:
        """The address of that server."""
        return self.data / "server.json"


def without_paths(text: str, settings: Settings) -> str:
    """Replace the places of the data folder and the bucket in `text`, since tenants must not see them."""
    data = settings.data
    places = {str(path): "<data>" for path in (data.absolute(), data.resolve(), data)}
    if settings.bucket:
        at = settings.bucket if "://" in settings.bucket else Path(settings.bucket).expanduser().absolute()
        places |= {str(at): "<bucket>", settings.bucket: "<bucket>"}
    for place, name in places.items():
        if len(place) > 1:  # the data folder may be "."
            text = text.replace(place, name)
    return text


def open_layout(data: Path) -> Layout:
    """Create or check a data folder.

    Raises Damaged if its format is newer, InvalidInput if it cannot be used, StorageFull.
    """
    layout = Layout(data)
    try:
        for folder in (data, layout.registry, layout.roots, layout.lowers, layout.adapters, layout.jobs):
            folder.mkdir(parents=True, exist_ok=True)
        _check_format(layout.format)
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise InvalidInput(
            f"{data} cannot be a data folder ({error.strerror}): choose a folder that you may write to",
            field="data",
        ) from error
    except OSError as error:
        raise full_or(error, data) from error
    return layout


def refuse_lost_registry(registry: Path) -> None:
    """Raise Damaged if the data folder has contents but no registry.

    A new registry would list none of the contents. It would also have no keys, and so admit everybody. The
    check for the registry is repeated at the end: another process may be creating the folder, and it creates
    the registry first.
    """
    data, layout = registry / "data.mdb", Layout(registry.parent)
    if data.exists() and data.stat().st_size:
        return
    folders = (layout.roots, layout.adapters, layout.jobs, layout.files)
    held = any(
        not path.name.startswith(".") for folder in folders if folder.is_dir() for path in folder.iterdir()
    )
    if held and not (data.exists() and data.stat().st_size):
        raise Damaged(
            "the registry is missing or empty beside roots, adapters, jobs or files: restore <data>/registry "
            "from a backup"
        )


def _check_format(path: Path) -> None:
    # Two processes may both find it missing; both write the same.
    if not path.exists():
        write_bytes(path, f"{FORMAT}\n".encode())
    text = path.read_text(errors="replace").strip()
    if not text.isdecimal():
        raise Damaged(
            f"{path} should hold the number of the data folder's format, not {text[:40]!r}: restore it"
        )
    if int(text) > FORMAT:
        raise Damaged(
            f"the data folder {path.parent} has format {int(text)}, and this release reads up to {FORMAT}: "
            "upgrade hmi-server"
        )
    if int(text) < FORMAT:  # raised before anything is written that an earlier release would misread
        write_bytes(path, f"{FORMAT}\n".encode())


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Try to hold an exclusive flock on `path` for the block; yields False if it is taken.

    The kernel releases the lock when its holder dies.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(fd)


@contextmanager
def wait_lock(path: Path, *, shared: bool = False) -> Iterator[None]:
    """Wait for a flock on `path` and hold it for the block; exclusive unless `shared`."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    with HOLDING:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def clear_leftovers(folder: Path, older_than_s: float) -> list[str]:
    """Remove temporary files (`.*.tmp`) of killed writers in `folder` and its subfolders.

    Returns the names removed.
    """
    removed = []
    before = time.time() - older_than_s
    for path in [*folder.glob(".*.tmp"), *folder.glob("*/.*.tmp")]:
        # Its writer, or another process's clean-up, may remove it meanwhile.
        with suppress(FileNotFoundError):
            if _last_change(path) < before:
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
                removed.append(path.name)
    return removed


def folder_bytes(folder: Path) -> int:
    """The total size in bytes of all files below `folder`. Files may vanish meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            if path.is_file():
                total += path.stat().st_size
    return total


def read_json(path: Path) -> object | None:
    """Return the JSON value in a file; None if the file is missing, is not JSON or is nested too deeply."""
    try:
        value: object = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return None
    return value


def _last_change(path: Path) -> float:
    newest = path.stat().st_mtime
    if path.is_dir():
        for inner in path.iterdir():
            with suppress(FileNotFoundError):
                newest = max(newest, inner.stat().st_mtime)
    return newest
