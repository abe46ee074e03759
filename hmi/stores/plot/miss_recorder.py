"""Recording of misses while a server answers.

New misses are sketched in memory, and a thread adds the sketches to the files every few seconds. A look-up
never waits for the disk. One process on a data folder records: it holds a lock that the kernel frees when
the process dies. If it is killed, the misses of the last `FLUSH_S` seconds are lost. An orderly stop loses
none.
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
from hmi.stores.failures import log_failure
from hmi.stores.layout import try_lock
from hmi.stores.plot.miss_files import Epochs, MissFiles
from plot_store import Hits, MissSketch, Schema, VersionInfo

FLUSH_S: Final = 10.0
"""Seconds between two flushes."""
MAX_SKETCHES: Final = 64
"""With more sketches than this in memory, they are flushed at once."""
_Key = tuple[str, str, str]
"""Domain, version, epoch."""
log = logging.getLogger("hmi.misses")


@dataclass
class _Part:
    """The misses since the last flush. Once `taken` by a flush, no more are added."""

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
        """Start recording. Returns False if another process records, or on a disk error, which is logged."""
        assert self._held is None, "a recorder is started once at a time"
        try:
            self.files.folder.mkdir(parents=True, exist_ok=True)
            with ExitStack() as stack:
                if not stack.enter_context(try_lock(self.files.folder / ".lock")):
                    return False
                self._epochs = self.files.epochs()
                self._held = stack.pop_all()
        except OSError as error:
            # The server must answer even if it cannot record.
            log_failure(log, f"misses cannot be recorded in {self.files.folder}", error)
            return False
        self._stopping = False
        self._wake.clear()
        self._thread = threading.Thread(target=self._work, name="hmi-misses", daemon=True)
        self._thread.start()
        return True

    def stop(self) -> None:
        """Flush everything, and let another process record. Idempotent."""
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
                log_failure(log, "the last recorded misses could not be written and are lost", error)
            with self._lock:
                self._epochs = {}
                self._parts.clear()

    def record(
        self, version: VersionInfo, tokens: NDArray[np.int32], offsets: NDArray[np.int64], hits: Hits
    ) -> None:
        """Record the misses of a look-up in `version`. Does nothing if its domain is not recorded.

        Never waits for the disk, nor raises its errors.
        """
        epoch = self._epochs.get(version.ref)
        if epoch is not None:
            key = (version.ref, version.id, epoch)
            while not self._add(key, version.schema, tokens, offsets, hits):
                pass  # a flush has just taken the sketch

    def refresh(self) -> None:
        """Read again which domains are recorded. Drops unwritten misses of earlier epochs."""
        if self._held is None:
            return
        epochs = self.files.epochs()
        with self._lock:
            self._epochs = epochs
            for key in [key for key in self._parts if epochs.get(key[0]) != key[2]]:
                del self._parts[key]

    def flush(self) -> None:
        """Write new misses to the files. Does nothing if this process does not record.

        Raises StorageFull, Unavailable, OSError.
        """
        if self._held is not None:
            self.refresh()
            self._write_out()

    def _add(
        self, key: _Key, schema: Schema, tokens: NDArray[np.int32], offsets: NDArray[np.int64], hits: Hits
    ) -> bool:
        with self._lock:
            part = self._parts.get(key)
            if part is None:
                part = self._parts[key] = _Part(MissSketch(schema.n, window=schema.window))
                if len(self._parts) > MAX_SKETCHES:
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
                # A full disk must not end recording: the next flush tries again.
                log_failure(log, "recorded misses could not be written; recording continues", error)

    def _write_out(self) -> None:
        """Add the sketches in memory to the files, then raise the first error.

        A sketch that cannot be written goes back into memory, and is lost if MAX_SKETCHES are there already.
        """
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
        with part.lock:  # waits for a call of `record` that is adding to it
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
            elif len(self._parts) < MAX_SKETCHES:
                self._parts[key] = _Part(sketch)
            else:
                log.error("recorded misses of %s could not be written and are lost", key[0])
