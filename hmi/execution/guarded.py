"""An executor on a device that may fail for good. What it does not finish then, a CPU's executor runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from hmi.errors import Unavailable
from hmi.execution.base import Executor, Hook
from hmi.execution.batch import BatchKey, Left, Rows, offsets_of
from hmi.execution.decoding.base import Between, PagesLost, Part, StepExecutor
from hmi.execution.decoding.scores import ScoreRow
from hmi.model.tenant.modules import TenantModule

log = logging.getLogger("hmi.execution")
V = TypeVar("V")


class Faulty(Protocol):
    """An executor that tells whether its device still works."""

    def fault(self) -> str | None:
        """Run a little work on the device. Return why it fails; None if the device works."""
        ...


class OnDevice(Executor, Faulty, Protocol):
    """An executor on a device."""


class StepsOnDevice(StepExecutor, Faulty, Protocol):
    """A step executor on a device."""


class Watch:
    """Tells errors of a device from those of its work. Thread-safe."""

    def __init__(self, device: Faulty, lost: Callable[[str], None]) -> None:
        """lost: called once, with the reason, on the thread that sees that the device has failed."""
        self._device, self._tell = device, lost
        self._lock, self.lost = threading.Lock(), False

    def failed(self) -> bool:
        """Return True if the device works no more. Called after an error."""
        why = self._device.fault()
        if why is None:
            return False
        with self._lock:
            first, self.lost = not self.lost, True
        if first:
            self._tell(why)
        return True


class Guarded:
    """An `Executor` on a device, and on the CPU for what the device cannot run.

    CUDA refuses all work of a process after some errors. The first error after which the device runs nothing
    any more ends its use: `lost` is called once, with the reason, on the thread that saw it. A batch for
    which the device has too little memory runs on the CPU, and the device goes on. All other errors are the
    batch's own, and are raised.
    """

    def __init__(self, device: OnDevice, cpu: Executor, lost: Callable[[str], None]) -> None:
        self._device, self._cpu, self._watch = device, cpu, Watch(device, lost)

    @property
    def layers(self) -> int:
        return self._cpu.layers

    def fits(self, key: BatchKey) -> bool:
        return self._device.fits(key)

    def space(self, tokens: int) -> Tensor:
        return self._first(lambda executor: executor.space(tokens))

    def prefetch(self, modules: Sequence[TenantModule | None]) -> None:
        self._first(lambda executor: executor.prefetch(modules))

    def prepare(self, module: TenantModule) -> int:
        return self._first(lambda executor: executor.prepare(module))

    def run(
        self, key: BatchKey, rows: Rows, modules: Sequence[TenantModule | None], hooks: Sequence[Hook] = ()
    ) -> Iterator[Left]:
        """See `Executor.run`. Texts that the device has not returned when it fails run on the CPU."""
        done = set[int]()
        if not self._watch.lost:
            try:
                for left in self._device.run(key, rows, modules, hooks):
                    done.update(left.texts)
                    yield left
                return
            except Exception as error:
                if not self._cannot(error):
                    raise
        yield from self._cpu.run(key, _rows_without(rows, done), modules, hooks)

    def _first(self, work: Callable[[Executor], V]) -> V:
        """Do it on the device, or on the CPU if the device cannot."""
        if not self._watch.lost:
            try:
                return work(self._device)
            except Exception as error:
                if not self._cannot(error):
                    raise
        return work(self._cpu)

    def _cannot(self, error: Exception) -> bool:
        """Return True if the device, not its work, is the reason for the error."""
        if self._watch.failed():
            return True
        if isinstance(error, torch.OutOfMemoryError):
            log.warning("a batch runs on the CPU: the device's memory is full (%s)", error)
            return True
        return False


class GuardedSteps:
    """A `StepExecutor` on a device, and on the CPU once the device has failed for good.

    The first step that finds the device lost raises PagesLost: keys and values went with it. If the device
    has too little memory for a step, the step raises Unavailable, and the device goes on.
    """

    def __init__(
        self, device: StepsOnDevice, cpu: Callable[[int], StepExecutor], lost: Callable[[str], None]
    ) -> None:
        """cpu: makes the executor that follows, with at least so many pages. lost: see `Watch`."""
        self._device, self._make, self._watch = device, cpu, Watch(device, lost)
        self._now: StepExecutor = device

    @property
    def pages(self) -> int:
        return self._now.pages

    def prepare(self, module: TenantModule) -> int:
        """See `StepExecutor.prepare`. Nothing is prepared between the loss and the step that tells of it."""
        now = self._now
        if now is not self._device:
            return now.prepare(module)
        try:
            return 0 if self._watch.lost else now.prepare(module)
        except Exception:
            if self._watch.failed():
                return 0
            raise

    def step(self, x: Tensor, parts: Sequence[Part], between: Between | None = None) -> Sequence[ScoreRow]:
        """See `StepExecutor.step`."""
        now = self._now
        if now is not self._device:
            return now.step(x, parts, between)
        try:
            if not self._watch.lost:
                return now.step(x, parts, between)
        except Exception as error:
            if not self._watch.failed():
                if isinstance(error, torch.OutOfMemoryError):
                    raise Unavailable(f"the device has too little memory to write: {error}") from error
                raise
        if self._now is self._device:  # no step between two layers has come before
            self._now = self._make(self._device.pages)
        raise PagesLost


def _rows_without(rows: Rows, done: Collection[int]) -> Rows:
    """The rows as they came from retrieval, without those texts."""
    if not done:
        return rows
    kept = [(text, a, b) for text, (a, b) in zip(rows.texts, rows.spans(), strict=True) if text not in done]
    at = torch.tensor(list(chain.from_iterable(range(a, b) for _, a, b in kept)), dtype=torch.int64)
    return Rows(rows.x.index_select(0, at), offsets_of([b - a for _, a, b in kept]), [t for t, *_ in kept])
