"""Tensors on disk, named by the SHA-256 of their file: tenants' modules and heads, and branches' lower
layers."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hmi.errors import Damaged, Unavailable
from hmi.model.checked import check_file
from hmi.model.files import full_or, write_bytes
from hmi.stores.layout import wait_lock

if TYPE_CHECKING:
    from torch import Tensor

# torch takes seconds to import, and most commands and checks never load a tensor: so it is imported where it
# is used.
SUFFIX = ".safetensors"
MODEL_CURE = (
    "roll the model back, or update it, which then begins afresh; or restore <data>/adapters from a copy"
)
LOWER_CURE = "restore <data>/lowers from a copy, or import an export of the domain"
_NAME = re.compile(r"[0-9a-f]{64}")


class DamagedArtefact(Damaged):
    """The message names the artefact by its hash, for logs. Whoever knows what it belongs to says that to
    others."""

    def __init__(self, name: str, what: str, cure: str) -> None:
        super().__init__(f"artefact {name} {what}: {cure}")
        self._what, self._cure = what, cure

    def of(self, whose: str) -> Damaged:
        """The error for those who know no hashes: `whose` artefact it is, as they call it."""
        return Damaged(f"the artefact of {whose} {self._what}: {self._cure}")


class AdapterStore:
    """Content-named files in one folder; several processes may use it. Nothing is ever changed in place."""

    def __init__(self, folder: Path, cure: str = MODEL_CURE) -> None:
        """`cure`: what to do about a damaged file, for messages."""
        self._folder, self._cure = folder, cure
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise full_or(error, folder) from error

    def put(self, tensors: Mapping[str, Tensor], meta: dict[str, str] | None = None) -> tuple[str, int]:
        """Store tensors durably; returns (name, bytes). The same content is stored once. Raises
        StorageFull."""
        from safetensors.torch import save

        plain = {k: tensors[k].detach().cpu().contiguous() for k in sorted(tensors)}
        # As one value: safetensors writes several in no fixed order, and equal content must get equal names.
        data = save(plain, {"meta": json.dumps(meta, sort_keys=True)} if meta else None)
        name = hashlib.sha256(data).hexdigest()
        self._write(name, data)
        return name, len(data)

    def take_over(self, name: str, data: bytes) -> None:
        """Store an artefact's bytes as another store had them. Raises Damaged (not what the name says),
        StorageFull."""
        if hashlib.sha256(data).hexdigest() != name:
            raise Damaged(
                f"artefact {name[:64]!r} does not match the hash in its name: copy it again from its origin"
            )
        self._write(name, data)

    def _write(self, name: str, data: bytes) -> None:
        path = self._path(name)
        # Shared among writers; `gc` takes it alone, so it cannot remove what a writer has just found.
        with self._lock(shared=True):
            if self._is_intact(path, name):
                os.utime(path)
            else:
                write_bytes(path, data)

    def get(self, name: str) -> dict[str, Tensor]:
        """Load tensors to the CPU after checking their hash. Raises DamagedArtefact, Unavailable (the disk
        refused)."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            data = self._path(name).read_bytes()
        except FileNotFoundError as error:
            raise DamagedArtefact(name, "is missing", self._cure) from error
        except OSError as error:
            raise Unavailable(
                f"artefact {name} could not be read ({error.strerror}): try again; if it stays so, "
                "check the disk"
            ) from error
        if hashlib.sha256(data).hexdigest() != name:
            raise DamagedArtefact(name, "fails its checksum", self._cure)
        try:
            return load(data)
        except SafetensorError as error:
            raise DamagedArtefact(name, f"cannot be read ({error})", self._cure) from error

    def about(self, name: str) -> dict[str, str]:
        """What was stored with the tensors as `meta`, from the file's head alone. Raises DamagedArtefact."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self._path(name), "np") as file:
                return dict(json.loads((file.metadata() or {}).get("meta", "{}")))
        except (OSError, ValueError, SafetensorError) as error:
            # An OSError's words name a path.
            why = type(error).__name__ if isinstance(error, OSError) else error
            raise DamagedArtefact(name, f"cannot be read ({why})", self._cure) from error

    def check(self, name: str, whose: str, cure: str) -> None:
        """Read an artefact's bytes, whatever was read before. Raises Damaged (missing, too), Unavailable."""
        check_file(self._path(name), name, whose, cure=cure, again=True)

    def path(self, name: str) -> Path:
        """The artefact's file, for reading. Raises Damaged for what is no name."""
        return self._path(name)

    def has(self, name: str) -> bool:
        return self._path(name).is_file()

    def names(self) -> set[str]:
        found = {p.name.removesuffix(SUFFIX) for p in self._folder.glob(f"*{SUFFIX}")}
        return {n for n in found if _NAME.fullmatch(n)}

    def bytes(self) -> int:
        total = 0
        for name in self.names():
            with suppress(FileNotFoundError):
                total += self._path(name).stat().st_size
        return total

    def spare(self, names: Collection[str]) -> None:
        """Count the age of these from now: whoever has just found one may still read it. Missing ones are
        left out."""
        with self._lock(shared=True):
            for name in names:
                with suppress(FileNotFoundError):
                    os.utime(self._path(name))

    def gc(self, keep: Collection[str], min_age_s: float = 3600) -> tuple[list[str], int]:
        """Remove what is not in `keep` and was last stored or spared `min_age_s` ago or before.

        Returns (names, bytes). A job stores first and publishes later: `min_age_s` must outlast the time
        between.
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
        return self._folder / f"{name}{SUFFIX}"

    @staticmethod
    def _is_intact(path: Path, name: str) -> bool:
        try:
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == name
        except OSError:
            # Missing or unreadable: writing it again is the answer to both, and fails with its own error.
            return False
