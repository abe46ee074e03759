"""Recording misses while a server answers: sketches in memory, written out every few seconds by one thread.

Of all processes on a data folder one records: it holds a lock that the kernel frees when it dies. What it had not yet
written then is lost, a few seconds of misses; a restart goes on with the rest.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from contextlib import ExitStack
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hmi.errors import Damaged
from hmi.stores.layout import try_lock
from hmi.stores.miss_files import Epochs, MissFiles
from plot_store import Hits, MissSketch, VersionInfo

FLUSH_S: Final = 10.0
MOST: Final = 64  # sketches in memory; those that rest longest wait on disk
_Key = tuple[str, str, str]  # domain, version, epoch
log = logging.getLogger("hmi.misses")


class MissRecorder:
    """Owns the sketches in memory. Thread-safe. Does nothing until `start`."""

    def __init__(self, files: MissFiles, flush_s: float = FLUSH_S) -> None:
        self.files = files
        self._flush_s = flush_s
        self._epochs: Epochs = {}
        self._sketches: OrderedDict[_Key, MissSketch] = OrderedDict()
        self._dirty: set[_Key] = set()
        self._lock = threading.Lock()
        self._held: ExitStack | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def on(self) -> bool:
        """Whether any domain is being recorded here."""
        return bool(self._epochs)

    def start(self) -> bool:
        """Record from now on, unless another process does or the disk refuses; whether it is this one."""
        assert self._held is None, "a recorder is started once at a time"
        try:
            self.files.folder.mkdir(parents=True, exist_ok=True)
            with ExitStack() as stack:
                if not stack.enter_context(try_lock(self.files.folder / ".lock")):
                    return False
                self._held = stack.pop_all()
        except OSError:
            # Answering is worth more than recording.
            log.exception("misses cannot be recorded in %s", self.files.folder)
            return False
        self._stopping.clear()
        self.refresh()
        self._thread = threading.Thread(target=self._work, name="hmi-misses", daemon=True)
        self._thread.start()
        return True

    def stop(self) -> None:
        """Write everything and let another process record. Again: nothing."""
        held, self._held = self._held, None
        if held is None:
            return
        self._stopping.set()
        assert self._thread is not None
        self._thread.join()
        with held:
            try:
                self._write_out()
            except Exception:
                log.exception("the last recorded misses could not be written and are lost")
            with self._lock:
                self._epochs = {}
                self._sketches.clear()
                self._dirty.clear()

    def record(self, version: VersionInfo, tokens: NDArray[np.int32], offsets: NDArray[np.int64], hits: Hits) -> None:
        """Take note of a look-up in `version`; next to no cost where its domain is off. Never raises for the disk."""
        epoch = self._epochs.get(version.ref)
        if epoch is not None:
            key = (version.ref, version.id, epoch)
            self._sketch(key, version.schema.n).add(tokens, offsets, hits)

    def refresh(self) -> None:
        """See which domains are switched on now. What was recorded under an earlier epoch goes."""
        if self._held is None:
            return
        epochs = self.files.epochs()
        with self._lock:
            self._epochs = epochs
            for key in [key for key in self._sketches if epochs.get(key[0]) != key[2]]:
                del self._sketches[key]
                self._dirty.discard(key)

    def flush(self) -> None:
        """Write out what is new. Nothing where another process records. Raises StorageFull, OSError."""
        if self._held is not None:
            self.refresh()
            self._write_out()

    def _work(self) -> None:
        while not self._stopping.wait(self._flush_s):
            try:
                self.flush()
            except Exception:
                # A full disk must not end recording: the next round tries again.
                log.exception("recorded misses could not be written; recording goes on")

    def _write_out(self) -> None:
        with self._lock:
            dirty, self._dirty = self._dirty, set()
            sketches = [(key, self._sketches[key]) for key in dirty if key in self._sketches]
        try:
            for key, sketch in sketches:
                self.files.write(*key, sketch)
        except BaseException:
            with self._lock:
                self._dirty |= {key for key, _ in sketches}
            raise

    def _sketch(self, key: _Key, n: int) -> MissSketch:
        """The sketch to add to: from memory, from disk or new; to be written at the next flush."""
        with self._lock:
            found = self._sketches.get(key)
            if found is None:
                found = self._sketches[key] = self._load(key) or MissSketch(n)
                self._make_room()
            self._sketches.move_to_end(key)
            self._dirty.add(key)
            return found

    def _load(self, key: _Key) -> MissSketch | None:
        try:
            return self.files.read(*key)
        except Damaged as error:
            log.warning("%s", error.message)
            return None

    def _make_room(self) -> None:
        """Caller holds the lock."""
        while len(self._sketches) > MOST:
            key, sketch = self._sketches.popitem(last=False)
            if key in self._dirty:
                self._dirty.discard(key)
                try:
                    self.files.write(*key, sketch)
                except Exception:
                    log.exception("recorded misses of %s could not be written and are lost", key[0])
