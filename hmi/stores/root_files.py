"""The files of roots: in the data folder, and in the bucket from which nodes fetch them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from hmi.errors import Damaged, Unavailable
from hmi.model.checked import file_sha256
from hmi.model.files import publish_folder, replace_folder
from hmi.stores.bucket import Bucket
from hmi.stores.failures import log_failure
from hmi.stores.layout import Layout, wait_lock
from hmi.stores.shared_folder import SharedFolder

log = logging.getLogger("hmi.stores")
LOWER: Final = "lower.safetensors"
SHARDS, MEASURED = "shards", "shards/fidelity.json"


class RootFiles:
    """The folders of roots' versions. Without a bucket they are those of the data folder. Thread-safe."""

    def __init__(
        self, layout: Layout, bucket: Bucket | None = None, follows: Callable[[], bool] = lambda: False
    ) -> None:
        """follows: whether to fetch shards again when another node has made them again. The node that makes
        them must not."""
        self._layout, self._bucket, self._follows = layout, bucket, follows

    def folder(self, name: str, version: str, *, lower: bool = True) -> Path:
        """Return the folder of a root's version. What it lacks is fetched first.

        lower: with the lower layers, which building and exact answers read. Who reads the folder finds that
        files are missing if the bucket has none, either. Raises Damaged, Unavailable, StorageFull.
        """
        folder = self._layout.root(name, version)
        if self._bucket is None:
            return folder
        whole = folder.is_dir() and (not lower or (folder / LOWER).is_file())
        if not whole or self._follows():
            try:
                self._fetch(self._shared(self._bucket, name, version), folder, lower)
            except (Damaged, Unavailable) as error:
                if not whole:
                    raise
                log_failure(log, f"root {name} is used as it is here", error)
        return folder

    def has(self, name: str, version: str) -> bool:
        """Return whether the data folder or the bucket has a root's version. Raises as `folder`."""
        if self._layout.root(name, version).is_dir():
            return True
        return self._bucket is not None and bool(self._shared(self._bucket, name, version).listed())

    def put(self, name: str, version: str) -> None:
        """Put a root's files into the bucket; call it before the registry tells of them. Raises
        Unavailable."""
        if self._bucket is not None:
            self._shared(self._bucket, name, version).put(self._layout.root(name, version))

    def share(self, name: str, version: str) -> None:
        """Put a root's files into the bucket if it has none of them, for a folder that had no bucket before.
        Raises as `folder`."""
        if self._bucket is None or not self._layout.root(name, version).is_dir():
            return
        if not self._shared(self._bucket, name, version).listed():
            self.put(name, version)

    def remove(self, name: str, version: str) -> None:
        """Remove a root's files from the bucket. Raises Unavailable."""
        if self._bucket is not None:
            self._shared(self._bucket, name, version).remove()

    def _fetch(self, shared: SharedFolder, folder: Path, lower: bool) -> None:
        files = shared.listed()
        wanted = {name for name in files if lower or name != LOWER}
        if not wanted:
            return
        folder.parent.mkdir(parents=True, exist_ok=True)
        with wait_lock(folder.with_name(f".{folder.name}.lock")):  # each file is fetched once
            if not folder.is_dir():
                publish_folder(folder, lambda aside: shared.fetch(aside, wanted))
                return
            if LOWER in wanted and not (folder / LOWER).is_file():
                shared.fetch(folder, [LOWER])
            measured = folder / MEASURED
            if self._follows() and files.get(MEASURED) != (
                file_sha256(measured) if measured.is_file() else None
            ):
                self._fetch_shards(shared, folder, wanted)

    @staticmethod
    def _fetch_shards(shared: SharedFolder, folder: Path, wanted: set[str]) -> None:
        """Fetch a root's shards in place of those that are here. Their readers keep the earlier ones open."""
        names = [name for name in wanted if name.startswith(f"{SHARDS}/")]
        with TemporaryDirectory(prefix=f".{folder.name}.", suffix=".tmp", dir=folder.parent) as aside:
            shared.fetch(Path(aside), names)
            replace_folder(Path(aside) / SHARDS, folder / SHARDS)

    def _shared(self, bucket: Bucket, name: str, version: str) -> SharedFolder:
        return SharedFolder(bucket, f"roots/{name}/{version}")
