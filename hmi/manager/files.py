"""Files that callers keep on the server for later jobs: their records and their contents."""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from hmi.core import now
from hmi.errors import Damaged, Unavailable
from hmi.manager.parts import HOUR_S, Parts
from hmi.model.files import full_or, sync_folder
from hmi.stores.records.file_table import FileLimits
from hmi.tenancy import FileRecord


class FileOperations:
    """The operations on files. Thread-safe."""

    def __init__(self, parts: Parts) -> None:
        self._parts, self._folder = parts, parts.layout.files

    def add(
        self, tenant: str | None, source: Path, name: str, purpose: str, *, limited: bool = True
    ) -> FileRecord:
        """Move `source`, which must lie in the data folder, among the files. The file is durable afterwards.

        limited: refuse it if the tenant would have more than the settings allow. Raises NotFound (no such
        tenant), QuotaExceeded, StorageFull, Unavailable (the bucket).
        """
        settings = self._parts.settings
        record = FileRecord(
            file=_new_id(),
            tenant=tenant,
            name=name,
            purpose=purpose,
            bytes=source.stat().st_size,
            sha256=_sha256(source),
            created=now(),
        )
        target = self._folder / record.file
        self._move(source, target)
        try:
            if self._parts.bucket is not None:
                self._parts.bucket.put(_shared(record.file), target)
            limits = FileLimits(settings.max_files, settings.files_bytes)
            self._parts.registry.add_file(record, limits if limited else None)
        except BaseException:
            self.forget([record.file])
            raise
        return record

    def find(self, file: str) -> FileRecord | None:
        """The record of a file; None if there is none."""
        return self._parts.registry.file(file)

    def of(self, tenant: str | None) -> list[FileRecord]:
        """The files of a tenant, or with None the administrator's, newest first."""
        return self._parts.registry.files(tenant)[::-1]

    def checked(self, record: FileRecord) -> Path:
        """The content of a file, all bytes of which are compared with their checksum. What is missing or
        damaged here is fetched from the bucket. Raises Damaged, Unavailable, StorageFull."""
        path, bucket = self._folder / record.file, self._parts.bucket
        with suppress(FileNotFoundError):
            if _sha256(path) == record.sha256:
                return path
        if bucket is not None:
            self._folder.mkdir(exist_ok=True)
            if bucket.fetch(_shared(record.file), path, record.sha256):
                return path
        raise Damaged(f"the content of file {record.file} is missing or damaged: delete it and send it again")

    def delete(self, file: str) -> None:
        """Remove a file. A job that has begun keeps its own copy. Raises NotFound."""
        self._parts.registry.delete_file(file)
        self.forget([file])

    def forget(self, files: Iterable[str]) -> None:
        """Remove the contents of files whose records are gone."""
        gone = list(files)
        for file in gone:
            with suppress(FileNotFoundError):
                (self._folder / file).unlink()
        if self._parts.bucket is not None:
            with suppress(Unavailable):  # the hourly collection makes up for it
                self._parts.bucket.remove(map(_shared, gone))

    def share(self) -> None:
        """Put the files that only the data folder has into the bucket. Raises Unavailable."""
        bucket = self._parts.bucket
        here = list(self._folder.iterdir()) if self._folder.is_dir() else []
        if bucket is not None and here:
            shared = set(bucket.names("files"))
            for path in here:
                if _shared(path.name) not in shared and self.find(path.name) is not None:
                    bucket.put(_shared(path.name), path)

    def collect(self) -> int:
        """Remove contents without a record, which a crash has left, and return their bytes."""
        freed, before = 0, time.time() - HOUR_S
        for path in self._folder.iterdir() if self._folder.is_dir() else ():
            with suppress(FileNotFoundError):
                found = path.stat()
                if found.st_mtime < before and self.find(path.name) is None:
                    path.unlink()
                    freed += found.st_size
        return freed

    def _move(self, source: Path, target: Path) -> None:
        try:
            self._folder.mkdir(exist_ok=True)
            with source.open("rb") as file:
                os.fsync(file.fileno())
            # An upload may be older than an hour by now; `collect` must not take it for a leftover.
            os.utime(source)
            source.rename(target)
            sync_folder(self._folder)
        except OSError as error:
            raise full_or(error, target) from error


def _shared(file: str) -> str:
    """A file's name in the bucket."""
    return f"files/{file}"


def _new_id() -> str:
    """A new id. Ids sort by time."""
    return f"file-{int(time.time() * 1000):011x}{secrets.token_hex(8)}"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
