"""Restoring a backup into a new data folder, which appears in one rename, after every hash was checked."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from hmi.backup.collection import CHUNK, READERS, Progress, listed
from hmi.backup.manifest import File, Manifest
from hmi.backup.target import Target
from hmi.core import JobRecord, now
from hmi.errors import Conflict, Damaged, InvalidInput, NotFound
from hmi.model.files import full_or, sync_folder
from hmi.stores.layout import Layout, open_layout
from hmi.stores.records.registry import Registry


def restore(
    target: Target, backup: str, data: Path, progress: Progress = lambda done, total: None
) -> Manifest:
    """Restore a backup as the data folder `data`, which must not exist yet, or be empty.

    Files are collected beside it. If this is killed, `data` is as it was, and the same call goes on from the
    files that are there already. Jobs that ran wait in the queue again. Raises Conflict (`data` is not empty,
    or is being restored), NotFound, Damaged (nothing was restored), InvalidInput, StorageFull, Unavailable.
    """
    data = data.absolute()
    _check_free(data)
    manifest, files = listed(target, backup)
    aside = data.with_name(f".{data.name}.restoring")
    try:
        data.parent.mkdir(parents=True, exist_ok=True)
        with _lock_collected(aside):
            _keep_only(aside, files)
            _collect(target, aside, files, progress)
            _settle(aside)
            for folder, _, _ in os.walk(aside):
                sync_folder(Path(folder))
            _check_free(data)
            aside.rename(data)
            sync_folder(data.parent)
    except OSError as error:
        raise _as_ours(error, data) from error
    return manifest


def _check_free(data: Path) -> None:
    if data.is_symlink() or (data.exists() and not data.is_dir()) or (data.is_dir() and any(data.iterdir())):
        raise Conflict(f"{data} is not an empty folder: give --data a folder that does not exist yet")


@contextmanager
def _lock_collected(aside: Path) -> Iterator[None]:
    """Create the folder of collected files if need be, and hold its lock, which ends with this process."""
    aside.mkdir(exist_ok=True)
    fd = os.open(aside, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(f"another process is restoring into {aside}: wait for its end") from None
        yield
    finally:
        os.close(fd)


def _keep_only(aside: Path, files: list[File]) -> None:
    """Remove files that are not in this backup: another restoration may have been begun here."""
    wanted = {file.path for file in files}
    for folder, _, names in os.walk(aside):
        for name in names:
            path = Path(folder) / name
            if path.relative_to(aside).as_posix() not in wanted:
                path.unlink()


def _collect(target: Target, aside: Path, files: list[File], progress: Progress) -> None:
    done, total = 0, sum(file.bytes for file in files)
    progress(0, total)
    for folder in {(aside / file.path).parent for file in files}:
        folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(READERS, thread_name_prefix="restore") as pool:
        try:
            for file in pool.map(lambda f: _fetch(target, aside, f), files):
                done += file.bytes
                progress(done, total)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _fetch(target: Target, aside: Path, file: File) -> File:
    """Write a file, unless it is there already with the right content. Raises Damaged."""
    path = aside / file.path
    if not _is_whole(path, file):
        part = path.with_name(f".{path.name}.tmp")
        whole = hashlib.sha256()
        try:
            with target.open(file.object) as source:
                _write(part, iter(lambda: source.read(CHUNK), b""), whole.update)
        except NotFound as error:
            raise _damaged(file, "is missing") from error
        if whole.hexdigest() != file.sha256:
            part.unlink()
            raise _damaged(file, "is damaged")
        part.rename(path)
    os.chmod(path, file.mode)
    os.utime(path, ns=(file.mtime_ns, file.mtime_ns))
    return file


def _write(path: Path, chunks: Iterator[bytes], update: Callable[[bytes], None]) -> None:
    try:
        with path.open("wb") as out:
            for chunk in chunks:
                out.write(chunk)
                update(chunk)
            out.flush()
            os.fsync(out.fileno())
    except OSError as error:
        raise _as_ours(error, path) from error


def _is_whole(path: Path, file: File) -> bool:
    try:
        if path.stat().st_size != file.bytes:
            return False
        with path.open("rb") as found:
            return hashlib.file_digest(found, "sha256").hexdigest() == file.sha256
    except FileNotFoundError:
        return False


def _settle(aside: Path) -> None:
    """Put jobs that ran back into the queue, and end the jobs that made backups.

    A registry that was shared follows its journal no longer: that would undo the restoration.
    """
    layout = open_layout(aside)
    registry = Registry.open(layout.registry)
    try:
        registry.leave_journal()
        for job in registry.live_jobs(tolerant=True):
            registry.update_job(job.job, _job_after_restore)
    finally:
        registry.close()
    _drop_locks(layout)


def _job_after_restore(job: JobRecord) -> JobRecord:
    if job.kind == "backup":
        message = "the data folder was restored from a backup that was made before this job ended"
        error = {"kind": "interrupted", "message": f"{message}: make another backup"}
        return job.model_copy(update={"state": "failed", "ended": now(), "error": error})
    if job.state == "running":
        return job.model_copy(update={"state": "queued", "attempts": max(0, job.attempts - 1)})
    return job


def _drop_locks(layout: Layout) -> None:
    for name in ("lock.mdb", "write.lock"):
        (layout.registry / name).unlink(missing_ok=True)


def _damaged(file: File, how: str) -> Damaged:
    return Damaged(
        f"the content of {file.path} {how} in the backup: nothing was restored; 'hmi backup verify' lists "
        "all damage, and --backup chooses another backup"
    )


def _as_ours(error: OSError, path: Path) -> Exception:
    full = full_or(error, path)
    if full is not error:
        return full
    return InvalidInput(
        f"{error.filename or path}: {error.strerror}: choose a folder that you may write to", field="data"
    )
