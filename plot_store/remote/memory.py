"""Objects in this process's memory, as fsspec's `memory://` keeps them: for tests and trials."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any, Final

import xxhash
from fsspec.implementations.memory import MemoryFileSystem

from plot_store.remote.objects import Listed

_LOCK: Final = threading.RLock()


class Memory:
    """See `Objects`. All instances of a process share what they hold."""

    def __init__(self, path: str) -> None:
        self.place = f"memory://{path}"
        self._base = f"/{path}"
        self._fs: Any = MemoryFileSystem()

    def get(self, name: str) -> tuple[bytes, str] | None:
        with _LOCK:
            try:
                data = bytes(self._fs.cat_file(self._path(name)))
            except FileNotFoundError:
                return None
        return data, xxhash.xxh3_128_hexdigest(data)

    def read(self, name: str, start: int, size: int) -> bytes | None:
        found = self.get(name)
        return None if found is None else found[0][start : start + size]

    def size(self, name: str) -> int | None:
        with _LOCK:
            try:
                return int(self._fs.info(self._path(name))["size"])
            except FileNotFoundError:
                return None

    def put(self, name: str, data: memoryview) -> None:
        with _LOCK:
            self._fs.pipe_file(self._path(name), bytes(data))

    def swap(self, name: str, data: bytes, tag: str | None) -> bool:
        with _LOCK:
            found = self.get(name)
            if (None if found is None else found[1]) != tag:
                return False
            self.put(name, memoryview(data))
            return True

    def listed(self, below: str) -> Iterator[Listed]:
        with _LOCK:
            found = self._fs.find(self._path(below), detail=True)
            modified = {path: self._fs.modified(path).timestamp() for path in found}
        for path, about in found.items():
            name = path[len(self._base) + 1 :]
            yield Listed(name, int(about["size"]), modified[path])

    def remove(self, names: Iterable[str]) -> None:
        with _LOCK:
            for name in names:
                if self._fs.exists(self._path(name)):
                    self._fs.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._base}/{name}"
