"""The records of a backup: the list of its files, and the manifest, which is written last.

A target holds `objects/<2 hex>/<sha256>`, each file's content under its hash and once for all backups, and
`backups/<id>/` with `files.jsonl` and `backup.json`. A backup exists once its `backup.json` does.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import PurePosixPath

from pydantic import ConfigDict, Field, ValidationError

from hmi.core import Record
from hmi.errors import Damaged, NotFound

FORMAT = 1
SHA256 = r"[0-9a-f]{64}"
BACKUP_PATTERN = r"[0-9]{8}T[0-9]{9}Z-[0-9a-f]{8}"
BACKUPS, OBJECTS = "backups", "objects"


class File(Record):
    """One file of a backup."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    path: str
    """The path relative to the data folder, with slashes."""
    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=f"^{SHA256}$")
    mtime_ns: int
    mode: int = Field(default=0o644, ge=0, le=0o777)

    @property
    def object(self) -> str:
        """The name of its content in the target."""
        return object_of(self.sha256)


class Manifest(Record):
    """The manifest of a backup, the content of `backup.json`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: int = FORMAT
    backup: str = Field(pattern=f"^{BACKUP_PATTERN}$")
    created: str
    """The time of the snapshot, RFC 3339 in UTC."""
    release: str
    """The release of HMI that made it."""
    files: int
    bytes: int
    """The size of all files together, in bytes."""
    new_files: int
    """The number of files whose content the target did not hold yet."""
    new_bytes: int
    """Bytes that this backup added to the target."""
    seconds: float
    files_sha256: str = Field(pattern=f"^{SHA256}$")
    """The hash of `files.jsonl`."""
    remarks: tuple[str, ...] = ()
    """One sentence for each thing that the data folder had lost already when the backup was made."""


def new_id(at: datetime) -> str:
    """A new backup's id: its time in UTC with milliseconds, by which ids sort, and random digits."""
    return f"{at.astimezone(UTC):%Y%m%dT%H%M%S}{at.microsecond // 1000:03}Z-{secrets.token_hex(4)}"


def is_id(text: str) -> bool:
    return re.fullmatch(BACKUP_PATTERN, text) is not None


def object_of(sha256: str) -> str:
    return f"{OBJECTS}/{sha256[:2]}/{sha256}"


def manifest_of(backup: str) -> str:
    """The name of a backup's manifest in the target. Raises NotFound for an impossible id."""
    if not is_id(backup):
        raise NotFound(f"there is no backup {backup[:80]!r}: see 'hmi backup list'", field="backup")
    return f"{BACKUPS}/{backup}/backup.json"


def files_of(backup: str) -> str:
    """The name of a backup's list of files in the target."""
    return f"{BACKUPS}/{backup}/files.jsonl"


def dump_files(files: Iterable[File]) -> bytes:
    return b"".join(file.model_dump_json().encode() + b"\n" for file in files)


def parse_manifest(raw: bytes, backup: str) -> Manifest:
    """Return the manifest in `raw`. Raises Damaged unless it is the sound manifest of this backup."""
    try:
        found = Manifest.model_validate_json(raw)
    except ValidationError as error:
        raise _damaged(backup) from error
    if found.format > FORMAT:
        raise Damaged(
            f"backup {backup} has format {found.format}, and this release reads up to {FORMAT}: upgrade "
            "hmi-server"
        )
    if found.backup != backup:
        raise _damaged(backup)
    return found


def parse_files(raw: bytes, manifest: Manifest) -> list[File]:
    """Return a backup's files. Raises Damaged, also for a path that leaves the data folder."""
    if hashlib.sha256(raw).hexdigest() != manifest.files_sha256:
        raise _damaged(manifest.backup)
    try:
        files = [File.model_validate_json(line) for line in raw.splitlines()]
    except ValidationError as error:
        raise _damaged(manifest.backup) from error
    if len(files) != manifest.files or not all(_stays_inside(file.path) for file in files):
        raise _damaged(manifest.backup)
    return files


def _stays_inside(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return bool(parts) and parts[0] != "/" and ".." not in parts and "\0" not in path and "\\" not in path


def _damaged(backup: str) -> Damaged:
    return Damaged(f"the manifest of backup {backup} is damaged: use another backup (hmi backup list)")
