"""Recording misses while a server answers: sketches of new misses lie in memory, and one thread adds them to
the files every few seconds. A look-up never waits for the disk.

One of the processes on a data folder records: it holds a lock that the kernel frees when it dies. A death
loses the misses that were not yet written, at most `FLUSH_S` seconds of them. An orderly stop loses none.
"""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hmi.errors import Damaged, HmiError
from hmi.stores.failures import tell
from hmi.stores.layout import try_lock
from hmi.stores.miss_files import Epochs, MissFiles
from plot_store import Hits, MissSketch, VersionInfo

FLUSH_S: Final = 10.0
MOST: Final = 64  # sketches in memory; with more, they are written out at once
_Key = tuple[str, str, str]  # domain, version, epoch
log = logging.getLogger("hmi.misses")


@dataclass
class _Part:
    """The misses since the last write. Once taken, nothing is added to it."""

    sketch: MissSketch
    taken: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class MissRecorder:
    """Owns the sketches in memory. Thread-safe. Does nothing until `start`."""

    def __init__(self, files: MissFiles, flush_s: float = FLUSH_S) -> None:
        self.files = files
        self._flush_s = flush_s
        self._epochs: Epochs = {}
        self._parts: dict[_Key, _Part] = {}
        self._lock = threading.Lock()
        self._writing = threading.Lock()  # one at a time reads a file, adds to it and writes it
        self._held: ExitStack | None = None
        self._stopping = False
        self._wake = threading.Event()
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
                self._epochs = self.files.epochs()
                self._held = stack.pop_all()
        except OSError as error:
            # Answering is worth more than recording.
            tell(log, f"misses cannot be recorded in {self.files.folder}", error)
            return False
        self._stopping = False
        self._wake.clear()
        self._thread = threading.Thread(target=self._work, name="hmi-misses", daemon=True)
        self._thread.start()
        return True

    def stop(self) -> None:
        """Write everything and let another process record. Again: nothing."""
        held, self._held = self._held, None
        if held is None:
            return
        self._stopping = True
        self._wake.set()
        assert self._thread is not None
        self._thread.join()
        with held:
            try:
                self._write_out()
            except Exception as error:
                tell(log, "the last recorded misses could not be written and are lost", error)
            with self._lock:
                self._epochs = {}
                self._parts.clear()

    def record(
        self, version: VersionInfo, tokens: NDArray[np.int32], offsets: NDArray[np.int64], hits: Hits
    ) -> None:
        """Take note of a look-up in `version`; next to no cost where its domain is off. Never raises for the
        disk."""
        epoch = self._epochs.get(version.ref)
        if epoch is not None:
            key = (version.ref, version.id, epoch)
            while not self._add(key, version.schema.n, tokens, offsets, hits):
                pass  # its part was taken to the disk this moment

    def refresh(self) -> None:
        """See which domains are switched on now. What was recorded under an earlier epoch goes."""
        if self._held is None:
            return
        epochs = self.files.epochs()
        with self._lock:
            self._epochs = epochs
            for key in [key for key in self._parts if epochs.get(key[0]) != key[2]]:
                del self._parts[key]

    def flush(self) -> None:
        """Write out what is new. Nothing where another process records. Raises StorageFull, Unavailable,
        OSError."""
        if self._held is not None:
            self.refresh()
            self._write_out()

    def _add(
        self, key: _Key, n: int, tokens: NDArray[np.int32], offsets: NDArray[np.int64], hits: Hits
    ) -> bool:
        with self._lock:
            part = self._parts.get(key)
            if part is None:
                part = self._parts[key] = _Part(MissSketch(n))
                if len(self._parts) > MOST:
                    self._wake.set()
        with part.lock:
            if not part.taken:
                part.sketch.add(tokens, offsets, hits)
            return not part.taken

    def _work(self) -> None:
        while True:
            self._wake.wait(self._flush_s)
            self._wake.clear()
            if self._stopping:
                return
            try:
                self.flush()
            except Exception as error:
                # A full disk must not end recording: the next round tries again.
                tell(log, "recorded misses could not be written; recording goes on", error)

    def _write_out(self) -> None:
        """Add what is in memory to the files. What could not be written stays in memory, and holds up no
        other."""
        failed: Exception | None = None
        with self._writing:
            with self._lock:
                keys = list(self._parts)
            for key in keys:
                with self._lock:
                    part = self._parts.pop(key, None)
                if part is not None:
                    try:
                        self._add_to_file(key, part)
                    except (HmiError, OSError) as error:
                        failed = failed or error
        if failed is not None:
            raise failed

    def _add_to_file(self, key: _Key, part: _Part) -> None:
        with part.lock:  # after the last who adds to it
            part.taken = True
        try:
            whole = self._load(key)
            if whole is None:
                whole = part.sketch
            else:
                whole.merge(part.sketch)
            self.files.write(*key, whole)
        except BaseException:
            self._put_back(key, part.sketch)
            raise

    def _load(self, key: _Key) -> MissSketch | None:
        try:
            return self.files.read(*key)
        except Damaged as error:
            log.warning("%s", error.message)
            return None

    def _put_back(self, key: _Key, sketch: MissSketch) -> None:
        with self._lock:
            since = self._parts.get(key)
            if since is not None:
                since.sketch.merge(sketch)
            elif len(self._parts) < MOST:
                self._parts[key] = _Part(sketch)
            else:
                log.error("recorded misses of %s could not be written and are lost", key[0])
