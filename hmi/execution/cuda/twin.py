"""A `Device` on the CPU that runs streams as unkindly as their events permit.

Work is queued, and runs when a thread waits for an event, or at random before. Which stream comes next is
drawn from a seeded generator, with weights that starve some streams and hurry others. So code that lacks a
wait reads what has not been written, or writes what is still read, for some seeds. Memory begins as NaN.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from hmi_kernels.modules import ops
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from hmi.execution import trace
from hmi.execution.cuda.device import Graph, Part, Pool, Stream, StreamEvent

_READ_BY_HOST = ("nonzero", "masked_select", "_unique2", "lift_fresh")
"""The operations that no capture may contain: they make the host wait, or copy from memory that is not
pinned. An operation that returns a number is not permitted either."""
_MEMORY = ("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided")


class _Recording(TorchDispatchMode):
    """Records torch's operations on this thread, with the very tensors that they read and write, for graphs.

    A capture runs nothing, as on a device: what it computes is rubbish. A replay runs each operation on what
    its tensors hold then, with the numbers and shapes that the host had at the capture. Between two replays
    the graph's own memory is rubbish, so nothing can live there.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps: list[Callable[[], object]] = []
        self.owned: list[Tensor] = []
        """The graph's own memory."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, schema, kwargs = func.overloadpacket.__name__, func._schema, kwargs or {}
        numbers = [result for result in schema.returns if "Tensor" not in str(result.type)]
        if name in _READ_BY_HOST or numbers:
            raise RuntimeError(f"operation not permitted when stream is capturing: {name}")
        if schema.is_mutable:
            self.steps.append(partial(func, *args, **kwargs))
            given = dict(zip((a.name for a in schema.arguments), args, strict=False)) | kwargs
            (changed,) = [given[a.name] for a in schema.arguments if a.alias_info and a.alias_info.is_write]
            return changed
        if any(result.alias_info is not None for result in schema.returns):
            made = func(*args, **kwargs)  # a view, which reads nothing; or a copy
            if _storages(made) <= _storages((args, kwargs)):
                return made
        else:
            made = func(*tree_map(_harmless, tuple(args)), **tree_map(_harmless, kwargs))
        mine = [t for t in tree_leaves(made) if isinstance(t, Tensor)]
        for tensor in mine:
            _spoil_one(tensor)
        self.owned += mine
        if name not in _MEMORY:
            self.steps.append(partial(_again, func, args, kwargs, mine))
        return made


class _Recorded:
    """An `ops.Launcher` that a twin's captures record."""

    def __init__(self, launcher: ops.Launcher, recording: Callable[[], _Recording | None]) -> None:
        self._launcher, self._recording = launcher, recording

    def launch(self, kernel: str, blocks: int, arguments: tuple[int, ...], stream: int | None) -> None:
        launch, recording = (
            partial(self._launcher.launch, kernel, blocks, arguments, stream),
            self._recording(),
        )
        if recording is None:
            launch()
        else:
            recording.steps.append(launch)


def _spoil_one(tensor: Tensor) -> None:
    """Fill memory with what nobody may read."""
    if tensor.dtype == torch.bool:
        tensor.fill_(True)
    else:
        tensor.fill_(torch.nan if tensor.is_floating_point() else 0x7F)


def _again(func: Any, args: Sequence[Any], kwargs: dict[str, Any], to: Sequence[Tensor]) -> None:
    made = [t for t in tree_leaves(func(*args, **kwargs)) if isinstance(t, Tensor)]
    for there, new in zip(to, made, strict=True):
        there.copy_(new)


def _harmless(value: Any) -> Any:
    """The same, but with indexes that are inside of whatever they point into: a capture's are rubbish."""
    whole = isinstance(value, Tensor) and not value.is_floating_point() and value.dtype != torch.bool
    return torch.zeros_like(value) if whole else value


def _storages(values: Any) -> set[int]:
    return {t.untyped_storage().data_ptr() for t in tree_leaves(values) if isinstance(t, Tensor)}


WEIGHTS = (0.01, 1.0, 100.0)
"""Each stream's chance to be next, drawn once."""
EAGERNESS = (0.0, 0.3, 1.0)
"""The chance that something runs at once when work is queued, drawn once for a device."""


class _Event:
    def __init__(self, twin: Twin) -> None:
        self.twin, self.reached = twin, False

    def done(self) -> bool:
        return self.reached

    def wait(self) -> None:
        self.twin.run_until(self)


@dataclass(frozen=True)
class _Op:
    kind: str
    """`work`, `copy`, `record` or `wait`."""
    name: str
    run: Callable[[], None] | None = None
    event: _Event | None = None


@dataclass
class _Pool:
    held: int = 0

    def bytes(self) -> int:
        return self.held


@dataclass(frozen=True)
class _Graph:
    stream: _Stream
    recording: _Recording


@dataclass
class _Stream:
    twin: Twin
    name: str
    weight: float
    queue: deque[_Op] = field(default_factory=deque)

    def record(self) -> StreamEvent:
        event = _Event(self.twin)
        self.twin.enqueue(self, _Op("record", "", event=event))
        return event

    def wait(self, event: StreamEvent) -> None:
        assert isinstance(event, _Event)
        self.twin.enqueue(self, _Op("wait", "", event=event))

    def copy(self, source: Tensor, to: Tensor, name: str) -> None:
        assert source.shape == to.shape, (name, source.shape, to.shape)
        self.twin.enqueue(self, _Op("copy", name, lambda: _write(to, source)))

    def copy_parts(self, parts: Sequence[Part], name: str) -> None:
        for source, to, at in parts:
            self.copy(source[at], to[at], name)

    def work(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, make: Callable[[], Tensor]
    ) -> Tensor:
        out = self.twin.empty(shape, dtype)

        def run() -> None:
            made = make()
            assert made.shape == shape, (name, made.shape, shape)
            assert made.dtype == dtype, (name, made.dtype, dtype)
            _write(out, made)

        self.twin.enqueue(self, _Op("work", name, run))
        return out

    def capture(self, name: str, make: Callable[[], object], pool: Pool) -> Graph:
        assert isinstance(pool, _Pool)
        self.twin.enqueue(self, _Op("work", name, partial(_run, make)))
        with self.twin.recording() as recording:
            make()
        pool.held = max(pool.held, sum(tensor.nbytes for tensor in recording.owned))
        return _Graph(self, recording)

    def replay(self, graph: Graph, name: str) -> None:
        assert isinstance(graph, _Graph)
        assert graph.stream is self, "a graph's memory belongs to the stream of its capture"
        recording = graph.recording
        for step in recording.steps:  # work of other streams comes in between
            self.twin.enqueue(self, _Op("work", name, partial(_run, step)))
        self.twin.enqueue(self, _Op("work", name, lambda: _spoil(recording.owned)))

    def settle(self) -> None:
        self.record().wait()


class Twin:
    """The device. `ran` lists the copies and work that have run: (stream, kind, name)."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._eagerness = self._random.choice(EAGERNESS)
        self._streams: list[_Stream] = []
        self._lock, self._thread = threading.RLock(), threading.local()
        self.ran: list[tuple[str, str, str]] = []

    def compute(self) -> Stream:
        found: _Stream | None = getattr(self._thread, "stream", None)
        if found is None:
            found = self._thread.stream = self._new(threading.current_thread().name)
        return found

    def stream(self, name: str) -> Stream:
        return self._new(name)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        self._refuse_in_capture("memory of the device")
        return torch.full(shape, torch.nan if dtype.is_floating_point else 0x7F, dtype=dtype)

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return self.empty(shape, dtype)

    def put(self, host: Tensor) -> Tensor:
        self._refuse_in_capture("a copy")
        return host.clone()

    def memory(self) -> int:
        return 0

    def pool(self) -> Pool:
        return _Pool()

    def check(self) -> None:
        self.compute().record().wait()

    def launcher(self, launcher: ops.Launcher) -> ops.Launcher:
        """Kernels that run on this device, where captures record them."""
        return _Recorded(launcher, lambda: getattr(self._thread, "recording", None))

    @contextmanager
    def recording(self) -> Iterator[_Recording]:
        """Record the thread's work in the block, instead of running it."""
        self._thread.recording = recording = _Recording()
        try:
            with recording:
                yield recording
        finally:
            self._thread.recording = None

    def _refuse_in_capture(self, what: str) -> None:
        if getattr(self._thread, "recording", None) is not None:
            raise RuntimeError(f"operation not permitted when stream is capturing: {what}")

    def enqueue(self, stream: _Stream, op: _Op) -> None:
        """Queue an operation, and run some of what is queued, by this device's eagerness."""
        self._refuse_in_capture(op.kind)
        with self._lock:
            stream.queue.append(op)
            while self._random.random() < self._eagerness and self._step():
                pass

    def run_until(self, event: _Event) -> None:
        """Run queued work, in a random order that the events permit, until `event` is reached."""
        with self._lock:
            while not event.reached:
                assert self._step(), "every stream waits for an event that no stream will reach"

    def _new(self, name: str) -> _Stream:
        with self._lock:
            stream = _Stream(self, name, self._random.choice(WEIGHTS))
            self._streams.append(stream)
            return stream

    def _step(self) -> bool:
        """Run one operation of a stream that does not wait; False if there is none."""
        able = [s for s in self._streams if s.queue and not _waits(s.queue[0])]
        if not able:
            return False
        (stream,) = self._random.choices(able, [s.weight for s in able])
        op = stream.queue.popleft()
        if op.kind == "record":
            assert op.event is not None
            op.event.reached = True
        if op.run is not None:
            with torch.inference_mode(), trace.span(op.name, f"device {stream.name}"):
                op.run()
            self.ran.append((stream.name, op.kind, op.name))
        return True


def _waits(op: _Op) -> bool:
    return op.kind == "wait" and op.event is not None and not op.event.reached


def _write(to: Tensor, source: Tensor) -> None:
    to.copy_(source)


def _run(step: Callable[[], object]) -> None:
    step()


def _spoil(memory: Sequence[Tensor]) -> None:
    for tensor in memory:
        _spoil_one(tensor)
