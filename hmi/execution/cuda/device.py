"""The interface to a device: memory, streams of work, and the events that order them.

Work of one stream runs in its order. Only events order the work of two streams: a stream that waits for an
event begins its later work after everything that the event's stream had before the event. Nothing here waits
for the whole device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

Part = tuple[Tensor, Tensor, slice]
"""A source, a destination, and the elements to copy, which have the same places in both."""


class StreamEvent(Protocol):
    """A point in a stream's work."""

    def done(self) -> bool:
        """Return whether the stream has reached this event. Does not wait."""
        ...

    def wait(self) -> None:
        """Block the calling thread until the stream has reached it; other threads may run Python."""
        ...


class Pool(Protocol):
    """Device memory that graphs share which run one after another, and which leave nothing in it."""

    def bytes(self) -> int:
        """Return the memory that these graphs hold. Takes some time."""
        ...


class Graph(Protocol):
    """Recorded work: operations, the addresses that they read and write, and nothing else of the host."""


class Stream(Protocol):
    """A queue of work on the device."""

    def record(self) -> StreamEvent:
        """Return the point after all work so far."""
        ...

    def wait(self, event: StreamEvent) -> None:
        """Let later work of this stream begin after `event`. The calling thread does not wait."""
        ...

    def copy(self, source: Tensor, to: Tensor, name: str) -> None:
        """Copy between pinned memory and the device. Neither may be changed before the copy has run."""
        ...

    def copy_parts(self, parts: Sequence[Part], name: str) -> None:
        """Copy parts of pinned memory to the device, as `copy` does. They begin and end at multiples of
        16 bytes."""
        ...

    def work(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, make: Callable[[], Tensor]
    ) -> Tensor:
        """Return the result of `make`, a tensor [shape] of `dtype`. Only this stream's later work may use it.

        The device may call `make` later, so `make` must not depend on what the caller changes meanwhile.
        """
        ...

    def capture(self, name: str, make: Callable[[], object], pool: Pool) -> Graph:
        """Run `make` once, then record what it does as a graph.

        `make` allocates no memory but by torch, reads no number back to the host, and leaves its results in
        memory that lives as long as the graph. Raises RuntimeError if it cannot be recorded.
        """
        ...

    def replay(self, graph: Graph, name: str) -> None:
        """Do again what was recorded, on what the same memory holds then. Only on the capture's stream."""
        ...

    def settle(self) -> None:
        """Let the calling thread's torch operations see all work so far. The thread must be the stream's
        own."""
        ...


class Device(Protocol):
    """One device. Thread-safe."""

    def compute(self) -> Stream:
        """Return the calling thread's own stream. From here on it is also torch's current stream there."""
        ...

    def stream(self, name: str) -> Stream:
        """Create a stream for copies."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Allocate uninitialised device memory for the current stream. Raises torch.OutOfMemoryError."""
        ...

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Allocate uninitialised host memory that the device copies from and to by itself."""
        ...

    def put(self, host: Tensor) -> Tensor:
        """Copy weights to the device at a start, and wait for the copy."""
        ...

    def memory(self) -> int:
        """Return the bytes of the device's memory."""
        ...

    def pool(self) -> Pool:
        """Return memory for graphs, empty as yet."""
        ...

    def check(self) -> None:
        """Do a little work, and wait for it. Raises what the device raises: after some errors, always."""
        ...


def fault_of(device: Device) -> str | None:
    """Run a little work on the device. Return why it fails; None if the device works."""
    try:
        device.check()
    except torch.OutOfMemoryError:
        return None  # the device works: its memory is full
    except Exception as error:
        return (str(error).splitlines() or [type(error).__name__])[0]
    return None
