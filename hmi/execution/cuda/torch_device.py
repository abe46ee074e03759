"""A CUDA device through torch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hmi.execution import trace
from hmi.execution.cuda.device import Event, Graph, Pool, Stream


class CudaDevice:
    """A `Device` on a GPU. Raises RuntimeError if torch finds no such device."""

    def __init__(self, index: int = 0) -> None:
        if not torch.cuda.is_available() or index >= torch.cuda.device_count():
            raise RuntimeError(f"torch finds no CUDA device {index}: check the driver with nvidia-smi")
        self._device = torch.device("cuda", index)
        self._thread = threading.local()

    def compute(self) -> Stream:
        found: _Stream | None = getattr(self._thread, "stream", None)
        if found is None:
            found = self._thread.stream = _Stream(self._device, threading.current_thread().name)
        torch.cuda.set_stream(found.torch)
        return found

    def stream(self, name: str) -> Stream:
        return _Stream(self._device, name)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self._device)

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, pin_memory=True)

    def put(self, host: Tensor) -> Tensor:
        return host.to(self._device)

    def pool(self) -> Pool:
        return _Pool()

    def check(self) -> None:
        torch.zeros(1, device=self._device).item()


class _Pool:
    def __init__(self) -> None:
        self.id = torch.cuda.graph_pool_handle()

    def bytes(self) -> int:
        every = torch.cuda.memory_snapshot()
        return sum(int(s["total_size"]) for s in every if tuple(s["segment_pool_id"]) == tuple(self.id))


@dataclass(frozen=True)
class _Graph:
    torch: torch.cuda.CUDAGraph


class _Event:
    def __init__(self, event: torch.cuda.Event) -> None:
        self.torch = event

    def done(self) -> bool:
        return bool(self.torch.query())

    def wait(self) -> None:
        self.torch.synchronize()  # releases the GIL


class _Stream:
    def __init__(self, device: torch.device, name: str) -> None:
        self.torch, self.name = torch.cuda.Stream(device), name

    def record(self) -> Event:
        event = torch.cuda.Event(blocking=True)  # the thread sleeps instead of spinning
        event.record(self.torch)
        return _Event(event)

    def wait(self, event: Event) -> None:
        assert isinstance(event, _Event)
        self.torch.wait_event(event.torch)

    def copy(self, source: Tensor, to: Tensor, name: str) -> None:
        # torch's allocators keep both until the copy has run, whoever drops them: pinned memory by itself.
        (to if to.is_cuda else source).record_stream(self.torch)
        with torch.cuda.stream(self.torch), self._timed(name):
            to.copy_(source, non_blocking=True)

    def work(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, make: Callable[[], Tensor]
    ) -> Tensor:
        with torch.cuda.stream(self.torch), self._timed(name):
            made = make()
        assert made.shape == shape, (name, made.shape, shape)
        assert made.dtype == dtype, (name, made.dtype, dtype)
        return made

    def capture(self, name: str, make: Callable[[], object], pool: Pool) -> Graph:
        assert isinstance(pool, _Pool)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self.torch):
            make()  # libraries load their kernels and take memory of their own, which a capture must not
            # Not `torch.cuda.graph`, which waits for the whole device. Other threads go on meanwhile.
            graph.capture_begin(pool=pool.id, capture_error_mode="thread_local")
            try:
                make()
            finally:
                graph.capture_end()
        return _Graph(graph)

    def replay(self, graph: Graph, name: str) -> None:
        assert isinstance(graph, _Graph)
        with torch.cuda.stream(self.torch), self._timed(name):
            graph.torch.replay()

    def settle(self) -> None:
        """torch's operations join this stream, which is the thread's current one."""

    def _timed(self, name: str) -> trace.Span:
        return trace.device_span(f"device {self.name}", name, self.torch)
