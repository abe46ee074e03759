"""Files that are named by the SHA-256 of their content, in a folder that processes may share.

With a bucket, nodes share them, too: a file is also put there, and fetched from there if the folder lacks it.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import ClassVar

from hmi.errors import Damaged, Unavailable
from hmi.model.checked import check_file
from hmi.model.files import full_or, write_bytes
from hmi.stores.bucket import Bucket
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
    """Content-addressed files in one folder, which processes may share. No file changes in place.

    With a bucket, what stores or reads a file raises Unavailable if the bucket is needed and does not answer.
    """

    suffix: ClassVar[str]
    """The end of the files' names."""

    def __init__(self, folder: Path, cure: str, bucket: Bucket | None = None) -> None:
        """Create the folder if needed. `cure` ends the messages about damaged files. bucket: where other
        nodes find the files, below the folder's name. Raises StorageFull."""
        self._folder, self._cure, self._bucket = folder, cure, bucket
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
            if self._bucket is not None:  # also if the file was here: a crash may have come before this
                self._bucket.put(self._shared(name), path)

    @contextmanager
    def _opened(self, name: str) -> Iterator[BufferedReader]:
        """The artefact's file. Its errors, also those of reading it, become DamagedArtefact or
        Unavailable."""
        try:
            with self.path(name).open("rb") as file:
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
        check_file(self.path(name), name, whose, cure=cure, again=True)

    def path(self, name: str) -> Path:
        """The artefact's file, for reading. It is fetched if only the bucket has it.

        Raises Damaged if `name` is not an artefact's name, DamagedArtefact if the bucket's file is damaged,
        StorageFull.
        """
        path = self._path(name)
        if self._bucket is not None and not path.exists():
            try:
                self._bucket.fetch(self._shared(name), path, name)
            except Damaged as error:
                raise DamagedArtefact(name, "fails its checksum in the bucket", self._cure) from error
        return path

    def has(self, name: str) -> bool:
        """Return whether the folder or the bucket has an artefact."""
        here = self._path(name).is_file()
        return here or (self._bucket is not None and self._bucket.has(self._shared(name)))

    def names(self) -> set[str]:
        """The names of the files in the folder."""
        return self._names(path.name for path in self._folder.glob(f"*{self.suffix}"))

    def known(self) -> set[str]:
        """The names of the files in the folder and in the bucket."""
        shared = [] if self._bucket is None else self._bucket.names(self._folder.name)
        return self.names() | self._names(name.rpartition("/")[2] for name in shared)

    def share(self, names: Collection[str]) -> None:
        """Put those of the artefacts that only the folder has into the bucket, for a folder that had none
        before. Damaged files stay out."""
        if self._bucket is None:
            return
        shared = self._bucket.names(self._folder.name)
        for name in (self.names() & set(names)) - self._names(file.rpartition("/")[2] for file in shared):
            with self._lock(shared=True):
                if self._is_intact(self._path(name), name):
                    self._bucket.put(self._shared(name), self._path(name))

    def _names(self, files: Iterable[str]) -> set[str]:
        found = {file.removesuffix(self.suffix) for file in files if file.endswith(self.suffix)}
        return {name for name in found if _NAME.fullmatch(name)}

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

    def gc(
        self, keep: Collection[str], min_age_s: float = 3600, *, shared: bool = False
    ) -> tuple[list[str], int]:
        """Remove artefacts that are not in `keep` and were last stored or spared at least `min_age_s` ago.

        Returns (names, bytes) of the removed files. A job stores an artefact before it publishes it:
        `min_age_s` must be longer than the time between. shared: remove them from the bucket, too, which only
        the node that manages may do, and only if `keep` has what every node needs.
        """
        removed, size = [], 0
        old = self._bucket.names(self._folder.name, min_age_s) if shared and self._bucket is not None else []
        with self._lock(shared=False):
            before = time.time() - min_age_s
            for name in sorted(self.names() - set(keep)):
                path = self._path(name)
                status = path.stat()
                if status.st_mtime <= before:
                    path.unlink()
                    removed.append(name)
                    size += status.st_size
            if shared and self._bucket is not None:
                # A file that is stored now is in the folder first, where it counts as young.
                gone = self._names(name.rpartition("/")[2] for name in old) - self.names() - set(keep)
                self._bucket.remove(map(self._shared, {*removed, *gone}))
        return removed, size

    def _lock(self, *, shared: bool) -> AbstractContextManager[None]:
        return wait_lock(self._folder / ".lock", shared=shared)

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise Damaged(
                f"{name[:80]!r} is not the name of an artefact: the record that names it is damaged"
            )
        return self._folder / f"{name}{self.suffix}"

    def _shared(self, name: str) -> str:
        """An artefact's name in the bucket."""
        return f"{self._folder.name}/{self._path(name).name}"

    @staticmethod
    def _is_intact(path: Path, name: str) -> bool:
        try:
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == name
        except OSError:
            # Missing or unreadable: in both cases it is written again, which may raise its own error.
            return False
