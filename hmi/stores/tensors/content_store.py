"""Files that are named by the SHA-256 of their content, in a folder that processes may share."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import ClassVar

from hmi.errors import Damaged, Unavailable
from hmi.model.checked import check_file
from hmi.model.files import full_or, write_bytes
from hmi.stores.layout import wait_lock

_NAME = re.compile(r"[0-9a-f]{64}")


class DamagedArtefact(Damaged):
    """A damaged or missing artefact. The message names it by its hash, for logs; `of` is for users."""

    def __init__(self, name: str, what: str, cure: str) -> None:
        super().__init__(f"artefact {name} {what}: {cure}")
        self._what, self._cure = what, cure

    def of(self, whose: str) -> Damaged:
        """Return the same error in a user's words: `whose` names what the artefact belongs to."""
        return Damaged(f"the artefact of {whose} {self._what}: {self._cure}")


class ContentStore:
    """Content-addressed files in one folder, which processes may share. No file changes in place."""

    suffix: ClassVar[str]
    """The end of the files' names."""

    def __init__(self, folder: Path, cure: str) -> None:
        """Create the folder if needed. `cure` ends the messages about damaged files. Raises StorageFull."""
        self._folder, self._cure = folder, cure
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise full_or(error, folder) from error

    def put_bytes(self, data: bytes) -> str:
        """Store bytes durably, equal ones once, and return their name. Raises StorageFull."""
        name = hashlib.sha256(data).hexdigest()
        self._write(name, data)
        return name

    def take_over(self, name: str, data: bytes) -> None:
        """Store an artefact's bytes under their name in another store.

        Raises Damaged if the bytes do not match the name, StorageFull.
        """
        if hashlib.sha256(data).hexdigest() != name:
            raise Damaged(
                f"artefact {name[:64]!r} does not match the hash in its name: copy it again from its origin"
            )
        self._write(name, data)

    def _write(self, name: str, data: bytes) -> None:
        path = self._path(name)
        # Writers share the lock and `gc` holds it alone, so it cannot remove what a writer has just found.
        with self._lock(shared=True):
            if self._is_intact(path, name):
                os.utime(path)
            else:
                write_bytes(path, data)

    @contextmanager
    def _opened(self, name: str) -> Iterator[BufferedReader]:
        """The artefact's file. Its errors, also those of reading it, become DamagedArtefact or
        Unavailable."""
        try:
            with self._path(name).open("rb") as file:
                yield file
        except FileNotFoundError as error:
            raise DamagedArtefact(name, "is missing", self._cure) from error
        except OSError as error:
            raise Unavailable(
                f"artefact {name} could not be read ({error.strerror}): try again; if it stays so, "
                "check the disk"
            ) from error

    def _check_hash(self, file: BufferedReader, name: str) -> None:
        if hashlib.file_digest(file, "sha256").hexdigest() != name:
            raise DamagedArtefact(name, "fails its checksum", self._cure)

    def mark(self, name: str) -> object:
        """A value that changes when the artefact's file is replaced or removed. Does not read the file."""
        try:
            status = self._path(name).stat()
        except (OSError, Damaged):
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns

    def check(self, name: str, whose: str, cure: str) -> None:
        """Read an artefact and check its hash, ignoring earlier results. Raises Damaged (also if it is
        missing), Unavailable."""
        check_file(self._path(name), name, whose, cure=cure, again=True)

    def path(self, name: str) -> Path:
        """The artefact's file, for reading. Raises Damaged if `name` is not an artefact's name."""
        return self._path(name)

    def has(self, name: str) -> bool:
        return self._path(name).is_file()

    def names(self) -> set[str]:
        found = {p.name.removesuffix(self.suffix) for p in self._folder.glob(f"*{self.suffix}")}
        return {n for n in found if _NAME.fullmatch(n)}

    def bytes(self) -> int:
        total = 0
        for name in self.names():
            with suppress(FileNotFoundError):
                total += self._path(name).stat().st_size
        return total

    def spare(self, names: Collection[str]) -> None:
        """Protect these artefacts from `gc` for its minimum age, counted from now. Ignores missing ones."""
        with self._lock(shared=True):
            for name in names:
                with suppress(FileNotFoundError):
                    os.utime(self._path(name))

    def gc(self, keep: Collection[str], min_age_s: float = 3600) -> tuple[list[str], int]:
        """Remove artefacts that are not in `keep` and were last stored or spared at least `min_age_s` ago.

        Returns (names, bytes) of the removed files. A job stores an artefact before it publishes it:
        `min_age_s` must be longer than the time between.
        """
        removed, size = [], 0
        with self._lock(shared=False):
            before = time.time() - min_age_s
            for name in sorted(self.names() - set(keep)):
                path = self._path(name)
                status = path.stat()
                if status.st_mtime <= before:
                    path.unlink()
                    removed.append(name)
                    size += status.st_size
        return removed, size

    def _lock(self, *, shared: bool) -> AbstractContextManager[None]:
        return wait_lock(self._folder / ".lock", shared=shared)

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise Damaged(
                f"{name[:80]!r} is not the name of an artefact: the record that names it is damaged"
            )
        return self._folder / f"{name}{self.suffix}"

    @staticmethod
    def _is_intact(path: Path, name: str) -> bool:
        try:
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == name
        except OSError:
            # Missing or unreadable: in both cases it is written again, which may raise its own error.
            return False
