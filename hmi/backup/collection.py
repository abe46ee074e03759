"""The backups of one target: listed, checked, and pruned."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from hmi.backup.claims import claimed
from hmi.backup.manifest import (
    BACKUPS,
    OBJECTS,
    File,
    Manifest,
    files_of,
    is_id,
    manifest_of,
    parse_files,
    parse_manifest,
)
from hmi.backup.target import Target, read_bytes
from hmi.errors import Damaged, HmiError, InvalidInput, NotFound

READERS = 8
CHUNK = 1 << 20
Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""


@dataclass(frozen=True)
class BackupEntry:
    """One backup of a list. `damage` says why its manifest cannot be read; it is then None."""

    backup: str
    manifest: Manifest | None
    damage: str = ""


@dataclass(frozen=True)
class Pruned:
    """The backups and contents that a pruning removed."""

    backups: tuple[str, ...]
    objects: int
    bytes: int


def complete(names: Mapping[str, int]) -> list[str]:
    """The ids of the backups that have a manifest, oldest first. names: all files below BACKUPS."""
    found = (name.split("/") for name in names)
    return sorted(parts[1] for parts in found if parts[2:] == ["backup.json"] and is_id(parts[1]))


def entries(target: Target) -> list[BackupEntry]:
    """The backups of a target, oldest first. Raises Unavailable."""
    return [_entry(target, backup) for backup in complete(target.sizes(BACKUPS))]


def newest(target: Target) -> str:
    """The id of the last backup. Raises NotFound if there is none."""
    backups = complete(target.sizes(BACKUPS))
    if not backups:
        raise NotFound(f"there is no backup at {target.name}: check the place, or make one first")
    return backups[-1]


def listed(target: Target, backup: str) -> tuple[Manifest, list[File]]:
    """A backup's manifest and files. Raises NotFound, Damaged, Unavailable."""
    manifest = _manifest(target, backup)
    try:
        return manifest, parse_files(read_bytes(target, files_of(backup)), manifest)
    except NotFound as error:
        raise Damaged(f"backup {backup} has lost its list of files: use another backup") from error


def verify(target: Target, backup: str, progress: Progress = lambda done, total: None) -> tuple[str, ...]:
    """Read every byte of a backup. Returns one sentence for each content that is missing or damaged.

    Raises NotFound, Damaged (the manifest), Unavailable.
    """
    _, files = listed(target, backup)
    contents = {file.object: file for file in files}
    total, done = sum(file.bytes for file in contents.values()), 0
    problems: list[str] = []
    with ThreadPoolExecutor(READERS, thread_name_prefix="verify") as pool:
        for file, problem in pool.map(lambda f: (f, _problem(target, f)), contents.values()):
            done += file.bytes
            progress(done, total)
            if problem:
                paths = [each.path for each in files if each.sha256 == file.sha256]
                problems.append(f"{', '.join(paths[:3])}: {problem}")
    return tuple(problems)


def prune(target: Target, *, keep: int) -> Pruned:
    """Remove all but the newest `keep` backups, and the contents that no backup needs any more.

    A manifest is removed before the objects that only it names, so a pruning that is killed leaves no backup
    that lacks something. Raises InvalidInput, NotFound (there is no backup), Conflict (a backup is being
    made), Damaged (a manifest that is to stay), Unavailable.
    """
    if keep < 1:
        raise InvalidInput("keep at least 1 backup", field="keep")
    newest(target)  # raises for a mistyped place, before `claimed` makes a folder there
    with claimed(target, "prune"):
        names = target.sizes(BACKUPS)
        backups = complete(names)
        gone, kept = backups[:-keep], backups[-keep:]
        needed = {file.object for backup in kept for file in listed(target, backup)[1]}
        target.remove(manifest_of(backup) for backup in gone)
        # The lists of backups that were never finished go, too: no backup is being made now.
        target.remove(name for name in names if name.split("/")[1] not in kept)
        objects = {name: size for name, size in target.sizes(OBJECTS).items() if name not in needed}
        _remove(target, objects)
        return Pruned(tuple(gone), len(objects), sum(objects.values()))


def _remove(target: Target, names: Iterable[str]) -> None:
    with ThreadPoolExecutor(READERS, thread_name_prefix="prune") as pool:
        for _ in pool.map(lambda name: target.remove([name]), names):
            pass


def _entry(target: Target, backup: str) -> BackupEntry:
    try:
        return BackupEntry(backup, _manifest(target, backup))
    except Damaged as error:
        return BackupEntry(backup, None, error.message)


def _manifest(target: Target, backup: str) -> Manifest:
    name = manifest_of(backup)
    try:
        raw = read_bytes(target, name)
    except NotFound as error:
        raise NotFound(
            f"there is no backup {backup} at {target.name}: see 'hmi backup list'", field="backup"
        ) from error
    return parse_manifest(raw, backup)


def _problem(target: Target, file: File) -> str:
    whole, size = hashlib.sha256(), 0
    try:
        with target.open(file.object) as source:
            while chunk := source.read(CHUNK):
                whole.update(chunk)
                size += len(chunk)
    except NotFound:
        return "the content is missing"
    except HmiError as error:
        return error.message
    return "" if (size, whole.hexdigest()) == (file.bytes, file.sha256) else "the content is damaged"
