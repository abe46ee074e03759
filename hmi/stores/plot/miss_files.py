"""Recorded misses on disk, and the switch for each domain. Stateless, so any process may use it.

    misses/<root.branch>/epoch                             a random word; exists while recording is on
    misses/<root.branch>/<version>.<epoch>.safetensors     the sketch of one PLOT version's misses

`forget` begins a new epoch. Sketches of older epochs are ignored and removed, also those that a recorder
writes late. Switching off removes the folder, and a late recorder does not create it again.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from safetensors import SafetensorError
from safetensors.numpy import load, save

import plot_store
from hmi.core import DomainId
from hmi.errors import Damaged, Unavailable
from hmi.model.files import full_or, write_bytes
from hmi.stores.layout import clear_leftovers
from plot_store import MissSketch

EPOCH: Final = "epoch"
HOUR_S: Final = 3600.0
SUFFIX: Final = ".safetensors"
SKETCH: Final = "misses"  # the name of a sketch among a job's inputs
Epochs = dict[str, str]


class MissFiles:
    """Owns `<data>/misses`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def epochs(self) -> Epochs:
        """The domains whose misses are recorded, each with its epoch."""
        found: Epochs = {}
        for path in self.folder.glob(f"[!.]*/{EPOCH}"):
            with suppress(FileNotFoundError):  # switched off this moment
                found[path.parent.name.replace(".", "/")] = path.read_text()
        return found

    def epoch(self, domain: str) -> str | None:
        """The domain's epoch; None if its misses are not recorded."""
        try:
            return (self._of(domain) / EPOCH).read_text()
        except FileNotFoundError:
            return None

    def switch_on(self, domain: str) -> None:
        """Record this domain's misses from now on. Idempotent. Raises StorageFull."""
        try:
            self._of(domain).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise full_or(error, self._of(domain)) from error
        if self.epoch(domain) is None:
            self._begin(domain)

    def switch_off(self, domain: str) -> None:
        """Stop recording a domain, and delete what was recorded. Idempotent."""
        gone = self.folder / f".{self._of(domain).name}.{secrets.token_hex(4)}.tmp"
        # Renamed first, so that a recorder that is writing at this moment leaves nothing behind.
        with suppress(FileNotFoundError):
            self._of(domain).replace(gone)
            shutil.rmtree(gone)

    def forget(self, domain: str, only_epoch: str | None = None) -> None:
        """Delete what was recorded, and continue recording. Does nothing if `only_epoch` is over."""
        epoch = self.epoch(domain)
        if epoch is not None and only_epoch in (None, epoch):
            with suppress(FileNotFoundError):  # switched off this moment
                self._begin(domain)
                self._sweep(domain)

    def write(self, domain: str, version: str, epoch: str, sketch: MissSketch) -> None:
        """Replace a version's sketch durably. Does nothing if recording is off. Raises StorageFull."""
        with suppress(FileNotFoundError):
            write_bytes(self._path(domain, version, epoch), sketch_bytes(sketch))

    def read(self, domain: str, version: str, epoch: str) -> MissSketch | None:
        """Return a version's sketch of this epoch; None if there is none. Raises Damaged, Unavailable."""
        return _read_if_there(self._path(domain, version, epoch))

    def all(self, domain: str) -> MissSketch | None:
        """Return the sum over all versions of the domain; None if nothing was recorded.

        Raises Damaged, Unavailable.
        """
        epoch = self.epoch(domain)
        if epoch is None:
            return None
        whole: MissSketch | None = None
        for path in sorted(self._of(domain).glob(f"*.{epoch}{SUFFIX}")):
            sketch = _read_if_there(path)
            if sketch is None:
                continue
            if whole is None:
                whole = MissSketch(sketch.n, sketch.capacity, window=sketch.window)
            whole.merge(sketch)
        return whole

    def prune(self, exists: Callable[[str], bool]) -> None:
        """Remove files of domains and versions that no longer exist, of earlier epochs and killed writers."""
        clear_leftovers(self.folder, HOUR_S)
        for domain in self.epochs():
            if not exists(domain):
                self.switch_off(domain)
                continue
            self._sweep(domain)
            for path in self._of(domain).glob(f"*{SUFFIX}"):
                if not exists(path.name.partition(".")[0]):
                    path.unlink(missing_ok=True)

    def _begin(self, domain: str) -> None:
        write_bytes(self._of(domain) / EPOCH, secrets.token_hex(8).encode())

    def _sweep(self, domain: str) -> None:
        epoch = self.epoch(domain)
        for path in self._of(domain).glob(f"*{SUFFIX}"):
            if path.name.split(".")[1] != epoch:
                path.unlink(missing_ok=True)

    def _of(self, domain: str) -> Path:
        return self.folder / ".".join(DomainId.parse(domain).parts)

    def _path(self, domain: str, version: str, epoch: str) -> Path:
        return self._of(domain) / f"{version}.{epoch}{SUFFIX}"


def sketch_bytes(sketch: MissSketch) -> bytes:
    """Serialise a sketch for `read_sketch`."""
    data: bytes = save(sketch.to_arrays())
    return data


def read_sketch(path: Path) -> MissSketch:
    """Read a sketch. Raises Damaged if the bytes are no sketch, Unavailable on a read error."""
    try:
        data = path.read_bytes()
    except OSError as error:
        # Not Damaged: a recorder replaces a damaged sketch, and would lose what the next try can still read.
        raise Unavailable(
            f"the recorded misses {path.name} could not be read ({error.strerror}): try again; if it "
            "happens again, check the disk"
        ) from error
    try:
        return MissSketch.from_arrays(load(data))
    except (SafetensorError, plot_store.Damaged) as error:
        raise Damaged(
            f"the recorded misses {path.name} cannot be read ({error}): switch recording off and on"
        ) from error


def _read_if_there(path: Path) -> MissSketch | None:
    """Read a sketch; None if the file is missing or has just been removed. Raises Damaged, Unavailable."""
    try:
        return read_sketch(path)
    except Unavailable as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise
