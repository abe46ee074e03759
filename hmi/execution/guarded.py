"""An executor on a device that may fail for good. What it does not finish then, a CPU's executor runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from hmi.execution.base import Executor, Hook
from hmi.execution.batch import BatchKey, Left, Rows, offsets_of
from hmi.model.tenant.modules import TenantModule

log = logging.getLogger("hmi.execution")
V = TypeVar("V")


class OnDevice(Executor, Protocol):
    """An executor that can say whether its device still works."""

    def fault(self) -> str | None:
        """Run a little work on the device. Return why it fails; None if the device works."""
        ...


class Guarded:
    """An `Executor` on a device, and on the CPU for what the device cannot run.

    CUDA refuses all work of a process after some errors. The first error after which the device runs nothing
    any more ends its use: `lost` is called once, with the reason, on the thread that saw it. A batch for
    which the device has too little memory runs on the CPU, and the device goes on. All other errors are the
    batch's own, and are raised.
    """

    def __init__(self, device: OnDevice, cpu: Executor, lost: Callable[[str], None]) -> None:
        self._device, self._cpu, self._tell = device, cpu, lost
        self._lock, self._lost = threading.Lock(), False

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
        if not self._lost:
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
        if not self._lost:
            try:
                return work(self._device)
            except Exception as error:
                if not self._cannot(error):
                    raise
        return work(self._cpu)

    def _cannot(self, error: Exception) -> bool:
        """Return True if the device, not its work, is the reason for the error."""
        why = self._device.fault()
        if why is None:
            if isinstance(error, torch.OutOfMemoryError):
                log.warning("a batch runs on the CPU: the device's memory is full (%s)", error)
            return isinstance(error, torch.OutOfMemoryError)
        with self._lock:
            first, self._lost = not self._lost, True
        if first:
            self._tell(why)
        return True


def _rows_without(rows: Rows, done: Collection[int]) -> Rows:
    """The rows as they came from retrieval, without those texts."""
    if not done:
        return rows
    kept = [(text, a, b) for text, (a, b) in zip(rows.texts, rows.spans(), strict=True) if text not in done]
    at = torch.tensor(list(chain.from_iterable(range(a, b) for _, a, b in kept)), dtype=torch.int64)
    return Rows(rows.x.index_select(0, at), offsets_of([b - a for _, a, b in kept]), [t for t, *_ in kept])
