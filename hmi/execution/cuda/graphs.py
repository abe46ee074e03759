"""Graphs of layers for shapes of batches that recur: one launch a layer instead of some forty.

A graph is recorded once for a shape, and replayed for any batch of that shape, whoever its tenants are: rows,
indexes and the addresses of modules lie in memory that belongs to the shape. A batch is padded to the next
shape. docs/design/0011-cuda-path.md says what a shape is and why padding changes no row.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from weakref import WeakSet

import torch
from hmi_kernels.modules import ops
from torch import Tensor

from hmi.execution.batch import rounded
from hmi.execution.cuda.device import Device, Graph, Pool
from hmi.execution.cuda.layout import ModuleLayout

log = logging.getLogger("hmi.execution")
MOST_ROWS = 16_384
"""Batches of more rows run operation by operation: the device is then busy longer than the launches take."""
LEAST = 16
"""The least rows of a shape, and of its longest text."""
SPREAD = 1.5
"""Attention over the padding may cost a quarter of the layer's linear maps: texts · longest² is at most
SPREAD · rows · dim. Batches of very unlike lengths run operation by operation, with attention by length,
unless attention needs no padding."""
RECURS = 3
"""A shape is captured when it comes for the third time."""
MOST_SEEN = 1024
"""Shapes whose batches are counted."""
MOST_SHAPES = 64
"""The most captured shapes of a compute thread. The least recently used go."""
MOST_BYTES = 512 << 20
"""The most memory of all threads' shapes together, or the device's / PART if that is more. Each thread that
has captured any gets an equal part."""
PART = 32
POOL = 4
"""A shape takes about this many times the memory of its rows, with what the pool grows by. A shape for which
a thread's part is too small is not captured."""


@dataclass(frozen=True)
class GraphShape:
    """The properties of a batch that its graph depends on. A replay reads all others from the device's
    memory."""

    rows: int
    texts: int
    longest: int
    reads: str
    """As in `BatchKey`."""
    sites: frozenset[str]
    """The sites that some module changes."""
    rank: int
    """The greatest rank that fits; 0: there are no low-rank changes."""


@dataclass(eq=False)
class Captured:
    """The memory and the graphs of a shape, on one compute thread."""

    shape: GraphShape
    x: tuple[Tensor, Tensor]
    """[rows, dim] each: layers read one and write the other, in turn."""
    pool: Pool
    """The thread's."""
    graphs: dict[int, Graph] = field(default_factory=dict)
    """The graph of each layer."""
    indexes: Tensor | None = None
    """int64: what the host tells the graphs of a batch; its size is known when the first batch begins."""

    def bytes(self) -> int:
        """The bytes of its own memory, without the pool."""
        return sum(t.nbytes for t in (*self.x, *([] if self.indexes is None else [self.indexes])))


class Graphs:
    """The captured shapes of an executor: each compute thread has its own, since its stream runs alone."""

    def __init__(self, device: Device, dim: int, positions: int, *, padded: bool = True) -> None:
        """padded: attention pads the texts of a shape to its longest."""
        self.on, self._padded = False, padded
        self._device, self._dim, self._positions = device, dim, positions
        self._memory = device.memory()
        self._thread = threading.local()
        self._threads: WeakSet[_Threads] = WeakSet()

    def shape_of(
        self, reads: str, offsets: Sequence[int], layouts: Iterable[ModuleLayout], kernels: bool
    ) -> GraphShape | None:
        """The shape that a batch is padded to; None: it runs operation by operation.

        kernels: whether there are kernels for low-rank changes, the only way that reads what changes from the
        device's memory.
        """
        distinct = list(layouts)
        rank = max((layout.rank for layout in distinct), default=0)
        longest = max(b - a for a, b in pairwise(offsets))
        shape = GraphShape(
            rows=rounded(max(offsets[-1], LEAST)),
            texts=rounded(len(offsets) - 1),
            longest=min(rounded(max(longest, LEAST)), self._positions),
            reads=reads,
            sites=frozenset().union(*(layout.sites for layout in distinct)),
            rank=-(-rank // ops.RANKS) * ops.RANKS,
        )
        even = not self._padded or shape.texts * shape.longest**2 <= SPREAD * shape.rows * self._dim
        able = shape.rows <= MOST_ROWS and longest <= shape.longest and (kernels or not rank)
        return shape if self.on and even and able else None

    def of(self, shape: GraphShape) -> Captured | None:
        """The calling thread's memory of a shape that has recurred; None: it has not, or was refused."""
        return self._mine().of(shape)

    def refuse(self, shape: GraphShape) -> None:
        """Never try this shape again on this thread."""
        self._mine().refuse(shape)

    def forget(self) -> None:
        """Drop what the calling thread has captured."""
        self._thread.shapes = None

    def held(self) -> tuple[int, int]:
        """The captured shapes of all threads, and their bytes."""
        threads = list(self._threads)
        return sum(len(mine.captured) for mine in threads), sum(mine.bytes() for mine in threads)

    def _mine(self) -> _Threads:
        found: _Threads | None = getattr(self._thread, "shapes", None)
        if found is None:
            found = self._thread.shapes = _Threads(
                self._device, self._dim, lambda: max(MOST_BYTES, self._memory // PART) // len(self._threads)
            )
            self._threads.add(found)
        return found


class _Threads:
    """One thread's shapes. share: the most bytes that they may take now."""

    def __init__(self, device: Device, dim: int, share: Callable[[], int]) -> None:
        self._device, self._dim, self._share = device, dim, share
        self._had = 0
        self._seen: OrderedDict[GraphShape, int] = OrderedDict()
        self._refused: set[GraphShape] = set()
        self._pool, self._measured = device.pool(), (0, 0)
        self.captured: OrderedDict[GraphShape, Captured] = OrderedDict()

    def bytes(self) -> int:
        """The bytes of all shapes, and of the pool that they share. Takes some time after a capture."""
        every = list(self.captured.values())
        if self._measured[0] != (count := sum(len(captured.graphs) for captured in every)):
            self._measured = count, self._pool.bytes() if count else 0
        return self._measured[1] + sum(captured.bytes() for captured in every)

    def of(self, shape: GraphShape) -> Captured | None:
        if (share := self._share()) < self._had:  # another thread has begun
            self._drop(MOST_SHAPES, share)
        self._had = share
        if shape in self.captured:
            self.captured.move_to_end(shape)
            return self.captured[shape]
        if shape in self._refused:
            return None
        self._seen[shape] = count = self._seen.pop(shape, 0) + 1
        if len(self._seen) > MOST_SEEN:
            self._seen.popitem(last=False)
        if count < RECURS:
            return None
        size = max(shape.rows, shape.texts), self._dim
        own = 2 * torch.float32.itemsize * size[0] * size[1]
        if POOL * own > share:
            return None
        self._drop(MOST_SHAPES - 1, share - own)
        with torch.inference_mode(False):  # so that any thread may write to it
            x = self._device.empty(size, torch.float32), self._device.empty(size, torch.float32)
        made = self.captured[shape] = Captured(shape, x, self._pool)
        return made

    def refuse(self, shape: GraphShape) -> None:
        self._refused.add(shape)
        self.captured.pop(shape, None)

    def _drop(self, count: int, size: int) -> None:
        """Keep at most `count` shapes of `size` bytes together, the most recently used.

        A graph that is dropped while it runs is freed when it has run.
        """
        while self.captured and (len(self.captured) > count or self.bytes() > size):
            shape, _ = self.captured.popitem(last=False)
            self._seen.pop(shape, None)  # other shapes may have driven it out
