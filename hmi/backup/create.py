"""Making a backup: a snapshot, then the files that the target lacks, then the manifest."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import hmi
from hmi.backup.claims import claimed
from hmi.backup.collection import Progress, complete, listed
from hmi.backup.contents import APPENDED, SNAPSHOTS, How, how, is_carried
from hmi.backup.manifest import (
    BACKUPS,
    OBJECTS,
    File,
    Manifest,
    dump_files,
    files_of,
    manifest_of,
    new_id,
    object_of,
)
from hmi.backup.target import Target
from hmi.errors import InvalidInput, Unavailable
from hmi.model.files import full_or
from hmi.stores.layout import Layout, try_lock
from hmi.stores.plot.plot_meta import PlotMeta
from hmi.stores.plot.plots import plot_errors
from hmi.stores.records.registry import Registry
from hmi.stores.records.whole_registry import RegistryContents
from hmi.stores.tensors.adapter_store import SUFFIX
from plot_store import Snapshot as PlotSnapshot
from plot_store import Store

_TAKES = 4
_AFTER_STORE = ("lowers", "samples")
"""Parts to which the PLOT store refers. They are taken after it."""


@dataclass(frozen=True)
class _FolderSnapshot:
    """A consistent snapshot of a data folder that other processes change meanwhile, in the same structure.

    It is a folder beside the originals. LMDB is copied in one transaction; other files are hard-linked, so
    that their bytes stay although garbage collection removes them. Parts are taken after whatever refers to
    them, since a writer stores a file before it publishes a reference to it. If a file was removed in
    between, the snapshot is taken again.
    """

    folder: Path
    missing: tuple[str, ...]
    """One sentence for each file that a record names and that the data folder has lost."""


@contextmanager
def snapshot(data: Path, registry: Registry, plots: Store) -> Iterator[_FolderSnapshot]:
    """Take a snapshot for the block, and remove it afterwards. Snapshots of dead processes are removed first.

    Raises StorageFull, Damaged, Unavailable.
    """
    base = data / SNAPSHOTS
    base.mkdir(exist_ok=True)
    _clear_dead(base)
    name = f"{int(time.time())}-{secrets.token_hex(4)}"
    with try_lock(base / f"{name}.lock"):
        try:
            yield _take_snapshot(data, base / name, registry, plots)
        except OSError as error:
            raise full_or(error, base) from error
        finally:
            shutil.rmtree(base / name, ignore_errors=True)
            (base / f"{name}.lock").unlink(missing_ok=True)


def _clear_dead(base: Path) -> None:
    """Remove the snapshots whose process has died: nobody holds their lock."""
    for lock in base.glob("*.lock"):
        with suppress(FileNotFoundError), try_lock(lock) as free:
            if free:
                shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
                lock.unlink(missing_ok=True)


def _take_snapshot(data: Path, folder: Path, registry: Registry, plots: Store) -> _FolderSnapshot:
    for tried in range(_TAKES):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        # A job that ends within the next moment loses its input, so folders of jobs are linked before, too.
        _take(data, folder, "jobs")
        (folder / "registry").mkdir()
        contents = registry.copy(folder / "registry")
        for part in sorted(os.listdir(data)):
            if how(part) in (How.LINKED, How.COPIED) and part not in _AFTER_STORE:
                _take(data, folder, part)
        with plot_errors():
            stored = plots.snapshot(folder / "plots")
        for part in _AFTER_STORE:
            _take(data, folder, part)
        missing = tuple(_missing(folder, contents, stored))
        if not missing or tried == _TAKES - 1:
            break
    return _FolderSnapshot(folder, missing)


def _take(data: Path, folder: Path, part: str) -> None:
    """Link or copy one part, and what is new in it if it was taken before."""
    source, linked = data / part, how(part) is How.LINKED
    if source.is_file():
        _copy(source, folder / part)
        return
    for inner, _, names in os.walk(source):
        target = folder / Path(inner).relative_to(data)
        target.mkdir(parents=True, exist_ok=True)
        for name in filter(is_carried, names):
            take = _link if linked and name not in APPENDED else _copy
            take(Path(inner) / name, target / name)


def _link(source: Path, target: Path) -> None:
    """Link a file unless it is linked already, or has vanished meanwhile."""
    with suppress(FileExistsError, FileNotFoundError):
        try:
            os.link(source, target, follow_symlinks=False)
        except (FileExistsError, FileNotFoundError):
            raise
        except OSError:  # a file system without links, or another one mounted here
            _copy(source, target)


def _copy(source: Path, target: Path) -> None:
    with suppress(FileNotFoundError):
        shutil.copy2(source, target, follow_symlinks=False)


def _missing(folder: Path, contents: RegistryContents, stored: PlotSnapshot) -> Iterator[str]:
    """Yield one sentence for each thing that the snapshot's records refer to and its files lack."""
    layout = Layout(folder)
    for file in stored.missing:
        yield f"file {file} of the PLOT store's segments is missing"
    for meta in stored.versions.values():
        lower = PlotMeta.from_dict(meta).lower
        if lower is not None and not (layout.lowers / f"{lower}{SUFFIX}").exists():
            yield f"the lower layers {lower} are missing"
    for root in contents.roots:
        if not layout.root(root.name, root.version).is_dir():
            yield f"the files of root {root.name} are missing"
    for model in contents.models:
        for version in model.versions:
            what = f"version {version.version} of model {model.tenant}.{model.name} lacks its"
            if not (layout.adapters / f"{version.artefact}{SUFFIX}").exists():
                yield f"{what} artefact"
            if version.plot_version not in stored.versions:
                yield f"{what} PLOT version"
    for job in contents.jobs:
        for name in job.spec.get("inputs", []):
            if not (layout.jobs / job.job / "input" / name).exists():
                yield f"job {job.job} lacks its input {name}"


TRIES = 5
SENDERS = 8
"""Files that are sent at a time, since each waits for the disk or the network."""


def create(
    data: Path,
    registry: Registry,
    plots: Store,
    target: Target,
    progress: Progress = lambda done, total: None,
    *,
    reread: bool = False,
) -> Manifest:
    """Back up the data folder, which other processes may change meanwhile, and return the new manifest.

    A file whose path, size and time of change are those of the last backup is not read again; with `reread`,
    every file is. If this is interrupted, the target has no new backup, and the next one uses the files that
    were sent. Raises Conflict (backups are being pruned), InvalidInput (the target lies in the data folder),
    StorageFull, Damaged, Unavailable.
    """
    if target.lies_in(data):
        raise InvalidInput(
            f"{target.name} lies in the data folder {data}, so each backup would hold all backups before it: "
            "give a place outside",
            field="target",
        )
    began = time.monotonic()
    with claimed(target, "create"), snapshot(data, registry, plots) as taken:
        at = datetime.now(UTC)
        known = {} if reread else _last_hashes(target)
        sending = _Sending(taken.folder, target, known, target.sizes(OBJECTS))
        files = sending.run(progress)
        return _finish(target, at, taken, files, sending, time.monotonic() - began)


def _finish(
    target: Target, at: datetime, taken: _FolderSnapshot, files: list[File], sending: _Sending, seconds: float
) -> Manifest:
    """Write the list of files, and then the manifest: from then on the backup exists."""
    backup, listed_files = new_id(at), dump_files(files)
    manifest = Manifest(
        backup=backup,
        created=at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        release=hmi.__version__,
        files=len(files),
        bytes=sum(file.bytes for file in files),
        new_files=sending.new_files,
        new_bytes=sending.new_bytes,
        seconds=round(seconds, 3),
        files_sha256=hashlib.sha256(listed_files).hexdigest(),
        remarks=taken.missing,
    )
    target.put(files_of(backup), listed_files)
    target.put(manifest_of(backup), manifest.model_dump_json(indent=1).encode() + b"\n")
    return manifest


Hashes = Mapping[tuple[str, int, int], str]
"""SHA-256 by path, size in bytes and time of change in ns."""


def _last_hashes(target: Target) -> Hashes:
    backups = complete(target.sizes(BACKUPS))
    if not backups:
        return {}
    _, files = listed(target, backups[-1])
    return {(file.path, file.bytes, file.mtime_ns): file.sha256 for file in files}


@dataclass
class _Sending:
    """Sends a snapshot's files to the target, each content once."""

    folder: Path
    target: Target
    known: Hashes
    held: dict[str, int]
    """The objects of the target, and those that are being sent, with their sizes."""
    new_files: int = 0
    new_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, progress: Progress) -> list[File]:
        """Send what is new, and describe all files, by path. `progress` is called on this thread."""
        found = sorted(_walk(self.folder))
        done, total = 0, sum(size for _, size in found)
        progress(0, total)
        files: list[File] = []
        with ThreadPoolExecutor(SENDERS, thread_name_prefix="backup") as pool:
            futures = [pool.submit(self._one, path) for path, _ in found]
            try:
                for future in as_completed(futures):
                    files.append(future.result())
                    done += files[-1].bytes
                    progress(min(done, total), total)
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        return sorted(files, key=lambda file: file.path)

    def _one(self, path: str) -> File:
        """Send a file if it is new, and describe it. An operator's own file may change meanwhile."""
        source = self.folder / path
        for _ in range(TRIES):
            status = source.stat()
            found = self._described(path, status)
            if found.object in self.held and self.held[found.object] != found.bytes:
                self.target.remove([found.object])  # it was cut off while it was sent
                del self.held[found.object]
            mine = self._claim(found)
            if mine:
                self.target.put(found.object, source)
            if _unchanged(status, source.stat()):
                return found
            if mine:
                self.target.remove([found.object])
                self._give_up(found)
        raise Unavailable(f"{path} changed {TRIES} times while it was read: back up again when it is quiet")

    def _described(self, path: str, status: os.stat_result) -> File:
        sha256 = self.known.get((path, status.st_size, status.st_mtime_ns))
        if sha256 is None or object_of(sha256) not in self.held:
            with open(self.folder / path, "rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        mode = stat.S_IMODE(status.st_mode) & 0o777
        return File(path=path, bytes=status.st_size, sha256=sha256, mtime_ns=status.st_mtime_ns, mode=mode)

    def _claim(self, file: File) -> bool:
        """Return whether this thread is to send the file's content."""
        with self._lock:
            if file.object in self.held:
                return False
            self.held[file.object] = file.bytes
            self.new_files += 1
            self.new_bytes += file.bytes
            return True

    def _give_up(self, file: File) -> None:
        with self._lock:
            del self.held[file.object]
            self.new_files -= 1
            self.new_bytes -= file.bytes


def _unchanged(before: os.stat_result, after: os.stat_result) -> bool:
    return (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)


def _walk(folder: Path) -> Iterator[tuple[str, int]]:
    """Paths, relative to `folder`, and sizes of the files that a backup carries; no symbolic links."""
    for inner, _, names in os.walk(folder):
        for name in filter(is_carried, names):
            path = Path(inner) / name
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                yield path.relative_to(folder).as_posix(), status.st_size
