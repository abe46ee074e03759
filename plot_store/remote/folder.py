"""Objects in a folder of this machine. While a conditional put runs, it holds a lock on a file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import xxhash

from plot_store.ground import files
from plot_store.ground.files import Buffer, convert_os_errors
from plot_store.ground.holding import locked
from plot_store.remote.objects import Listed

_LOCK: Final = "lock"


class Folder:
    """See `Objects`. An object is written under a temporary name, synced and renamed."""

    def __init__(self, folder: Path) -> None:
        self.place = str(folder)
        self._folder = folder

    def get(self, name: str) -> tuple[bytes, str] | None:
        with self._errors(name):
            try:
                data = (self._folder / name).read_bytes()
            except FileNotFoundError:
                return None
        return data, xxhash.xxh3_128_hexdigest(data)

    def read(self, name: str, start: int, size: int) -> bytes | None:
        with self._errors(name):
            try:
                with open(self._folder / name, "rb") as file:
                    file.seek(start)
                    return file.read(size)
            except FileNotFoundError:
                return None

    def size(self, name: str) -> int | None:
        with self._errors(name):
            try:
                return (self._folder / name).stat().st_size
            except FileNotFoundError:
                return None

    def put(self, name: str, data: Buffer) -> None:
        path = self._folder / name
        with self._errors(name):
            files.make_folder(path.parent)
            draft = files.write_temporary(path.parent, [data])
            try:
                os.replace(draft, path)
            except BaseException:
                files.remove(draft)
                raise
            files.sync_folder(path.parent)

    def swap(self, name: str, data: bytes, tag: str | None) -> bool:
        with self._errors(_LOCK):
            files.make_folder(self._folder)
        with locked(self._folder / _LOCK):
            found = self.get(name)
            if (None if found is None else found[1]) != tag:
                return False
            self.put(name, data)
            return True

    def listed(self, below: str) -> Iterator[Listed]:
        """Files that a killed process left half-written are listed, too."""
        for base, _, names in os.walk(self._folder / below):
            for name in names:
                path = Path(base) / name
                try:
                    found = path.stat()
                except FileNotFoundError:
                    continue
                yield Listed(path.relative_to(self._folder).as_posix(), found.st_size, found.st_mtime)

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            files.remove(self._folder / name)

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        with convert_os_errors(f"using {name} in {self.place}"):
            yield
