"""Content-addressed tensors on disk: tenants' modules and heads, and branches' lower layers.

Each file is named by its SHA-256.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hmi.errors import Unavailable
from hmi.stores.bucket import Bucket
from hmi.stores.tensors.content_store import ContentStore
from hmi.stores.tensors.content_store import DamagedArtefact as DamagedArtefact

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


class AdapterStore(ContentStore):
    """Artefacts in one folder, which processes may share. No file changes in place."""

    suffix = SUFFIX

    def __init__(self, folder: Path, cure: str = MODEL_CURE, bucket: Bucket | None = None) -> None:
        """See `ContentStore`. Raises StorageFull."""
        super().__init__(folder, cure, bucket)

    def put(self, tensors: Mapping[str, Tensor], meta: dict[str, str] | None = None) -> tuple[str, int]:
        """Store tensors durably, equal content once; returns (name, bytes). Raises StorageFull."""
        from safetensors.torch import save

        plain = {k: tensors[k].detach().cpu().contiguous() for k in sorted(tensors)}
        # One value: safetensors writes several in no fixed order, and equal content must get equal names.
        data = save(plain, {"meta": json.dumps(meta, sort_keys=True)} if meta else None)
        return self.put_bytes(data), len(data)

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

    def about(self, name: str) -> dict[str, str]:
        """Return the `meta` that `put` stored, reading only the file's head. Raises DamagedArtefact."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.path(name), "np") as file:
                return dict(json.loads((file.metadata() or {}).get("meta", "{}")))
        except (OSError, ValueError, SafetensorError) as error:
            # An OSError's message names a path.
            why = type(error).__name__ if isinstance(error, OSError) else error
            raise DamagedArtefact(name, f"cannot be read ({why})", self._cure) from error


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
