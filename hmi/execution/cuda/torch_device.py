"""Implements the interface `Device` (`hmi.execution.cuda.device`) with torch: streams, events, memory
pools and graphs of a CUDA device."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property

import torch
from hmi_kernels.modules import ops
from torch import Tensor

from hmi.execution import trace
from hmi.execution.cuda.device import Graph, Part, Pool, Stream, StreamEvent

_THREAD = threading.local()
"""Each thread's compute streams, by device. All roots share them: torch has 32 streams of a priority, and
hands them out again after that."""
COMPUTE, COPIES = -1, 0
"""The priorities of streams that compute and of streams that copy. They differ, so that torch never hands out
one stream for both."""
_NOTHING = nullcontext()
_FLYING: deque[tuple[StreamEvent, object]] = deque()
_FLYING_LOCK = threading.Lock()
"""What running copy kernels read, each with the event that ends its kernel, the oldest first.

torch does not know that these kernels read it, and would free it too early. What ended kernels read is
dropped at the next copy. It is kept here and not in a stream's object, since that may be freed before its
kernels have run.
"""


class TorchDevice:
    """A `Device` (`hmi.execution.cuda.device`) on a GPU, through torch."""

    def __init__(self, index: int = 0, *, kernels: ops.Launcher | None = None) -> None:
        """index: the device's number, as torch counts. kernels: launches the kernels of
        `hmi_kernels.modules`; with them one kernel copies many modules, without them each part is a copy of
        its own.

        Raises RuntimeError if torch finds no such device.
        """
        if not torch.cuda.is_available() or index >= torch.cuda.device_count():
            raise RuntimeError(f"torch finds no CUDA device {index}: check the driver with nvidia-smi")
        self._device, self._kernels = torch.device("cuda", index), kernels
        torch.backends.cuda.enable_cudnn_sdp(False)  # it plans for some 30 ms at each new shape of a batch

    def compute(self) -> Stream:
        streams: dict[int, _TorchStream] = _THREAD.__dict__.setdefault("streams", {})
        found = streams.get(self._device.index)
        if found is None:
            found = _TorchStream(self._device, threading.current_thread().name, COMPUTE)
            streams[self._device.index] = found
        torch.cuda.set_stream(found.torch)
        return found

    def stream(self, name: str) -> Stream:
        return _TorchStream(self._device, name, COPIES, self._kernels)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self._device)

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, pin_memory=True)

    def put(self, host: Tensor) -> Tensor:
        return host.to(self._device)

    def memory(self) -> int:
        return int(torch.cuda.get_device_properties(self._device).total_memory)

    def pool(self) -> Pool:
        return _TorchPool()

    def check(self) -> None:
        torch.zeros(1, device=self._device).item()


class _TorchPool:
    def __init__(self) -> None:
        self.id = torch.cuda.graph_pool_handle()

    def bytes(self) -> int:
        every = torch.cuda.memory_snapshot()
        return sum(int(s["total_size"]) for s in every if tuple(s["segment_pool_id"]) == tuple(self.id))


@dataclass(frozen=True)
class _TorchGraph:
    torch: torch.cuda.CUDAGraph


def _row(source: Tensor, to: Tensor, at: slice) -> tuple[int, int, int]:
    """A part, as the kernel is told of it."""
    begin, size = at.start * source.element_size(), (at.stop - at.start) * source.element_size()
    assert begin % ops.COPY_BYTES == size % ops.COPY_BYTES == 0
    return source.data_ptr() + begin, to.data_ptr() + begin, size


class _TorchEvent:
    def __init__(self, event: torch.cuda.Event) -> None:
        self.torch = event

    def done(self) -> bool:
        return bool(self.torch.query())

    def wait(self) -> None:
        self.torch.synchronize()  # releases the GIL


class _TorchStream:
    def __init__(
        self, device: torch.device, name: str, priority: int, kernels: ops.Launcher | None = None
    ) -> None:
        self.torch, self.name = torch.cuda.Stream(device, priority=priority), name
        self._device, self._priority, self._kernels = device, priority, kernels

    @cached_property
    def _captures(self) -> torch.cuda.Stream:
        """A stream for captures alone, which no copy uses: if pinned memory that a stream used is freed
        during the stream's capture, torch records an event there, and fails who takes pinned memory next."""
        return torch.cuda.Stream(self._device, priority=self._priority)

    def record(self) -> StreamEvent:
        event = torch.cuda.Event(blocking=True)  # the thread sleeps instead of spinning
        event.record(self.torch)
        return _TorchEvent(event)

    def wait(self, event: StreamEvent) -> None:
        assert isinstance(event, _TorchEvent)
        self.torch.wait_event(event.torch)

    def copy(self, source: Tensor, to: Tensor, name: str) -> None:
        with self._current(), self._timed(name):
            # torch's allocators keep both until the copy has run: pinned memory by itself.
            (to if to.is_cuda else source).record_stream(self.torch)
            to.copy_(source, non_blocking=True)

    def copy_parts(self, parts: Sequence[Part], name: str) -> None:
        if self._kernels is None:
            for source, to, at in parts:
                self.copy(source[at], to[at], name)
            return
        rows = [_row(source, to, at) for source, to, at in parts]
        table = torch.empty((len(rows), ops.COPY_WORDS), dtype=torch.int64, pin_memory=True)
        table.numpy()[:] = rows
        with torch.cuda.device(self._device), self._timed(name):
            ops.copy(self._kernels, table.data_ptr(), len(rows), self.torch.cuda_stream)
        for to in {to.untyped_storage().data_ptr(): to for _, to, _ in parts}.values():
            to.record_stream(self.torch)
        with _FLYING_LOCK:
            while _FLYING and _FLYING[0][0].done():
                _FLYING.popleft()
            _FLYING.append((self.record(), (table, *parts)))

    def work(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, make: Callable[[], Tensor]
    ) -> Tensor:
        with self._current(), self._timed(name):
            made = make()
        assert made.shape == shape, (name, made.shape, shape)
        assert made.dtype == dtype, (name, made.dtype, dtype)
        return made

    def capture(self, name: str, make: Callable[[], object], pool: Pool) -> Graph:
        assert isinstance(pool, _TorchPool)
        graph, side = torch.cuda.CUDAGraph(), self._captures
        side.wait_stream(self.torch)
        with torch.cuda.stream(side):
            make()  # libraries load their kernels and take memory of their own, which a capture must not
            # Not `torch.cuda.graph`, which waits for the whole device. Other threads go on meanwhile.
            graph.capture_begin(pool=pool.id, capture_error_mode="thread_local")
            try:
                make()
            finally:
                self._end(graph, pool)
        self.torch.wait_stream(side)
        return _TorchGraph(graph)

    def _end(self, graph: torch.cuda.CUDAGraph, pool: _TorchPool) -> None:
        """End a capture, also one that has failed: torch would go on allocating for it."""
        try:
            graph.capture_end()
        except Exception:
            for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
                with suppress(Exception):
                    getattr(torch._C, name)(self._device.index, pool.id)
            raise

    def replay(self, graph: Graph, name: str) -> None:
        assert isinstance(graph, _TorchGraph)
        with self._current(), self._timed(name):
            graph.torch.replay()

    def settle(self) -> None:
        """torch's operations join this stream, which is the thread's current one."""

    def _current(self) -> AbstractContextManager[object]:
        """This stream as torch's current one. A thread's own stream is that already, since `compute`; torch
        takes longer to enter it again than to launch a graph."""
        own = _THREAD.__dict__.get("streams", {}).get(self._device.index) is self
        return _NOTHING if own else torch.cuda.stream(self.torch)

    def _timed(self, name: str) -> trace.Span:
        return trace.device_span(f"device {self.name}", name, self.torch)
