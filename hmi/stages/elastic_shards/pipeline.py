"""The pipeline of shards: one thread reads the shards of layer after layer, while batches decode and compute.

STI, section 5.5. A batch reads exactly the shards of its plan that the preload buffer does not hold, in the
order of the layers. A trace tells what was read when, and where the computation had to wait.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from hmi.errors import Unavailable
from hmi.stages.elastic_shards.io_budget import REAL, Clock, IoBudget

Ref = tuple[int, int, int]
"""A stored shard: its layer, its slice of the layer, and its bits."""
B_co = TypeVar("B_co", covariant=True)
B = TypeVar("B")


class ShardSource(Protocol[B_co]):
    """The shards on the disk."""

    def size(self, ref: Ref) -> int:
        """The bytes that a read of the shard takes."""
        ...

    def read(self, ref: Ref) -> B_co:
        """Read a shard and check it. Called on the pipeline's thread. Raises Damaged, Unavailable."""
        ...


@dataclass(frozen=True)
class Read:
    """The read of the shards of one layer for one batch, by the pipeline's clock."""

    layer: int
    bytes: int
    begun: float
    ended: float


@dataclass(frozen=True)
class Wait:
    """The time in which a batch waited for the shards of a layer."""

    layer: int
    begun: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.begun


@dataclass
class ShardTrace:
    """The reads and waits of one batch. The pipeline's thread and the batch's append to it."""

    begun: float
    reads: list[Read] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(read.bytes for read in self.reads)

    @property
    def stall_s(self) -> float:
        """Seconds that the batch waited for reads."""
        return sum(wait.seconds for wait in self.waits)


class ShardStream(Generic[B]):
    """The shards of one batch. Its thread takes layer after layer, and closes the stream when it ends."""

    def __init__(self, layers: Sequence[Sequence[Ref]], begun: float) -> None:
        self.layers, self.trace = layers, ShardTrace(begun)
        self.ready: dict[int, dict[Ref, B]] = {}
        self.error: Exception | None = None
        self.closed = False
        self.computed = 0
        """The number of layers that the batch has computed."""


class Pipeline(Generic[B]):
    """Reads shards for batches, on a thread that lives as long as there is something to read. Thread-safe.

    `ahead` bounds the layers of a batch that are read, or in reading, and not computed yet; None sets no
    bound.
    """

    def __init__(
        self,
        source: ShardSource[B],
        *,
        budget: IoBudget | None = None,
        ahead: int | None = None,
        clock: Clock = REAL,
        spawn: Callable[[Callable[[], None]], None] | None = None,
        keep: bool = False,
    ) -> None:
        """keep: whatever is read stays in the preload buffer."""
        self._source, self._clock, self._ahead = source, clock, ahead
        self._budget = budget or IoBudget(clock=clock)
        self._changed = threading.Condition()
        self._jobs: deque[tuple[ShardStream[B], int]] = deque()
        self._spawn = spawn or _spawn
        self._running = self._closed = False
        self._keep = keep
        self.preloaded: Mapping[Ref, B] = {}
        """The preload buffer."""

    def preload(self, refs: Sequence[Ref]) -> None:
        """Read these shards, on the caller's thread, and hold them from now on instead of those before.

        Raises Damaged, Unavailable.
        """
        kept = self.preloaded
        self.preloaded = {ref: kept[ref] if ref in kept else self._read([ref])[ref] for ref in refs}

    def planned_bytes(self, layers: Sequence[Sequence[Ref]]) -> int:
        """The bytes that a batch of these layers reads."""
        return sum(self._size(refs) for refs in layers)

    @contextmanager
    def stream(self, layers: Sequence[Sequence[Ref]]) -> Iterator[ShardStream[B]]:
        """Begin to read the layers' shards for one batch. What it does not take is not read any further."""
        stream: ShardStream[B] = ShardStream(layers, self._clock.now())
        with self._changed:
            if self._closed:
                raise Unavailable("the root's shards are closed; send the request again", retry_after_s=1)
            self._jobs.extend((stream, at) for at in range(len(layers)))
            self._changed.notify_all()
            if not self._running:
                self._running = True
                self._spawn(self._serve)
        try:
            yield stream
        finally:
            with self._changed:
                stream.closed = True
                self._jobs = deque(job for job in self._jobs if job[0] is not stream)
                stream.ready.clear()
                self._changed.notify_all()

    def take(self, stream: ShardStream[B], at: int) -> dict[Ref, B]:
        """Return the shards of the stream's layer `at`; waits until they are read.

        Raises the error of their read, or Unavailable if the pipeline has been closed.
        """
        with self._changed:
            stream.computed = at
            self._changed.notify_all()
            if at not in stream.ready and stream.error is None and not self._closed:
                begun = self._clock.now()
                self._clock.wait(
                    self._changed, lambda: at in stream.ready or stream.error is not None or self._closed
                )
                stream.trace.waits.append(Wait(at, begun, self._clock.now()))
            if at not in stream.ready:
                raise stream.error or Unavailable(
                    "the root's shards were closed while they were read; send the request again",
                    retry_after_s=1,
                )
            read, held = stream.ready.pop(at), self.preloaded
            if self._keep:
                self.preloaded = {**held, **read}
        return {ref: read[ref] if ref in read else held[ref] for ref in stream.layers[at]}

    def close(self) -> None:
        """Read nothing more, and wait for the read under way. Batches that still wait fail with
        Unavailable."""
        with self._changed:
            self._closed = True
            self._jobs.clear()
            self._changed.notify_all()
            self._clock.wait(self._changed, lambda: not self._running)

    def _size(self, refs: Sequence[Ref]) -> int:
        """The bytes to read for these shards: the preload buffer's are not read."""
        return sum(self._source.size(ref) for ref in refs if ref not in self.preloaded)

    def _serve(self) -> None:
        """Read for one stream after another, until nothing is left to read."""
        while True:
            with self._changed:
                self._clock.wait(self._changed, lambda: not self._jobs or self._may_read())
                if not self._jobs:
                    self._running = False
                    self._changed.notify_all()
                    return
                stream, at = self._jobs.popleft()
                refs = [ref for ref in stream.layers[at] if ref not in self.preloaded]
                size = self._size(refs)
            begun = self._clock.now()
            try:
                found = self._read(refs)
                error = None
            except Exception as failed:
                found, error = {}, failed
            ended = self._clock.now()
            with self._changed:
                if refs and error is None:
                    stream.trace.reads.append(Read(at, size, begun, ended))
                if error is not None:
                    stream.error = error
                    self._jobs = deque(job for job in self._jobs if job[0] is not stream)
                elif not stream.closed:
                    stream.ready[at] = found
                self._changed.notify_all()

    def _may_read(self) -> bool:
        """Return whether the next layer is within the bound. Batches are served one after another."""
        stream, at = self._jobs[0]
        return self._ahead is None or at - stream.computed < self._ahead

    def _read(self, refs: Sequence[Ref]) -> dict[Ref, B]:
        until = self._budget.reserve(sum(map(self._source.size, refs)))
        found = {ref: self._source.read(ref) for ref in refs}
        self._clock.sleep_until(until)
        return found


def _spawn(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="hmi-shards", daemon=True).start()
