"""Content-addressed tensors on disk: tenants' modules and heads, and branches' lower layers.

Each file is named by its SHA-256.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import mmap
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hmi.errors import Damaged, Unavailable
from hmi.model.checked import check_file
from hmi.model.files import full_or, write_bytes
from hmi.stores.layout import wait_lock

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

# torch takes seconds to import, and most commands and checks load no tensor. It is imported where it is used.
SUFFIX = ".safetensors"
MODEL_CURE = (
    "roll the model back, or update it, which then begins afresh; or restore <data>/adapters from a copy"
)
LOWER_CURE = "restore <data>/lowers from a copy, or import an export of the domain"
_NAME = re.compile(r"[0-9a-f]{64}")


class DamagedArtefact(Damaged):
    """A damaged or missing artefact. The message names it by its hash, for logs; `of` is for users."""

    def __init__(self, name: str, what: str, cure: str) -> None:
        super().__init__(f"artefact {name} {what}: {cure}")
        self._what, self._cure = what, cure

    def of(self, whose: str) -> Damaged:
        """Return the same error in a user's words: `whose` names what the artefact belongs to."""
        return Damaged(f"the artefact of {whose} {self._what}: {self._cure}")


@dataclass(frozen=True)
class Mapped:
    """An artefact in memory without a copy: its tensors are views of the mapped file, which is not kept open.

    The mapping ends with the last of them. HMI changes no file in place, so the views keep their values.
    """

    tensors: dict[str, Tensor]
    bytes: int
    check: Callable[[], None]
    """Call it before the tensors are read again after `rest`: a read ends the process if another program has
    cut the file short meanwhile. Raises DamagedArtefact if the file changed in place, Unavailable."""
    _data: NDArray[np.uint8]

    def rest(self) -> None:
        """Take the file's pages out of this process's memory. A later access gets them back from the kernel's
        cache, or from the disk."""
        _libc().madvise(self._data.ctypes.data, self.bytes, mmap.MADV_DONTNEED)


class AdapterStore:
    """Content-addressed files in one folder, which processes may share. No file changes in place."""

    def __init__(self, folder: Path, cure: str = MODEL_CURE) -> None:
        """Create the folder if needed. `cure` ends the messages about damaged files. Raises StorageFull."""
        self._folder, self._cure = folder, cure
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise full_or(error, folder) from error

    def put(self, tensors: Mapping[str, Tensor], meta: dict[str, str] | None = None) -> tuple[str, int]:
        """Store tensors durably, equal content once; returns (name, bytes). Raises StorageFull."""
        from safetensors.torch import save

        plain = {k: tensors[k].detach().cpu().contiguous() for k in sorted(tensors)}
        # One value: safetensors writes several in no fixed order, and equal content must get equal names.
        data = save(plain, {"meta": json.dumps(meta, sort_keys=True)} if meta else None)
        name = hashlib.sha256(data).hexdigest()
        self._write(name, data)
        return name, len(data)

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

    def get(self, name: str) -> dict[str, Tensor]:
        """Return the tensors as `map` does, but copied."""
        return {key: value.clone() for key, value in self.map(name).tensors.items()}

    def map(self, name: str) -> Mapped:
        """Map an artefact into memory and check its hash, which reads the file once.

        Raises DamagedArtefact, and Unavailable on a read error.
        """
        with self._opened(name) as file:
            status = os.fstat(file.fileno())
            if not status.st_size:
                raise DamagedArtefact(name, "fails its checksum", self._cure)
            try:
                data = _mapped(file, status.st_size)
            except RuntimeError as error:
                raise Unavailable(f"artefact {name} could not be mapped ({error}): try again") from error
            # The file is hashed by reading: a read error of a mapped page would end the process.
            self._check_hash(file, name)
        try:
            views = _views(data)
        except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise DamagedArtefact(name, f"cannot be read ({error})", self._cure) from error
        return Mapped(views, status.st_size, lambda: self._check_inode(name, status.st_ino), data)

    def _check_inode(self, name: str, inode: int) -> None:
        """Check the artefact's hash, unless its file was removed or replaced: a mapping then has the old
        one."""
        if not self._path(name).exists():
            return
        with self._opened(name) as file:
            if os.fstat(file.fileno()).st_ino == inode:
                self._check_hash(file, name)

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

    def about(self, name: str) -> dict[str, str]:
        """Return the `meta` that `put` stored, reading only the file's head. Raises DamagedArtefact."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self._path(name), "np") as file:
                return dict(json.loads((file.metadata() or {}).get("meta", "{}")))
        except (OSError, ValueError, SafetensorError) as error:
            # An OSError's message names a path.
            why = type(error).__name__ if isinstance(error, OSError) else error
            raise DamagedArtefact(name, f"cannot be read ({why})", self._cure) from error

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
        found = {p.name.removesuffix(SUFFIX) for p in self._folder.glob(f"*{SUFFIX}")}
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
        return self._folder / f"{name}{SUFFIX}"

    @staticmethod
    def _is_intact(path: Path, name: str) -> bool:
        try:
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == name
        except OSError:
            # Missing or unreadable: in both cases it is written again, which may raise its own error.
            return False


def _mapped(file: BufferedReader, size: int) -> NDArray[np.uint8]:
    """Map a file into memory. Raises RuntimeError.

    `mmap.mmap` would hold a file descriptor as long as the mapping lives, and a process may open far fewer
    files than it has modules. The mapping is private and writable, because torch takes no view of read-only
    memory. Nothing writes to it.
    """
    import torch

    storage = torch.UntypedStorage.from_file(f"/dev/fd/{file.fileno()}", shared=False, nbytes=size)
    whole = torch.empty(0, dtype=torch.uint8).set_(cast(torch.UntypedStorage, storage))
    found: NDArray[np.uint8] = whole.numpy()
    return found


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return libc


def _views(data: NDArray[np.uint8]) -> dict[str, Tensor]:
    """The tensors of a mapped safetensors file: eight bytes of length, a head in JSON, the numbers.

    The library itself copies what it reads from memory. Raises ValueError and others if it is no such file.
    """
    import torch

    types = {"F16": torch.float16, "F32": torch.float32, "BF16": torch.bfloat16, "I8": torch.int8}
    start = 8 + int.from_bytes(data[:8].tobytes(), "little")
    head = json.loads(data[8:start].tobytes())
    head.pop("__metadata__", None)
    found = {}
    for name, about in head.items():
        kind, shape, (begin, end) = types[about["dtype"]], about["shape"], about["data_offsets"]
        if not 0 <= begin <= end <= len(data) - start:
            raise ValueError(f"{name} lies outside the file")
        empty = begin == end
        flat = (
            torch.empty(0, dtype=kind)
            if empty
            else torch.frombuffer(
                data, dtype=kind, count=(end - begin) // kind.itemsize, offset=start + begin
            )
        )
        found[name] = flat.view(shape)
    return found
