"""Parts of the engine that also count their own CPU time and what they are given."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from hmi.core import ModelVersion
from hmi.engine.bundles import Bundles, Part, Upper
from hmi.execution.base import Hook
from hmi.execution.batch import BatchKey, Left, Rows
from hmi.execution.choose import Chosen
from hmi.model.modules import TenantModule
from plot_store import Reader


@dataclass
class Counts:
    """The inputs of retrieval and executor, and the CPU seconds of their threads, with what these wait for a
    device."""

    retrieval_s: float = 0.0
    layers_s: float = 0.0
    batches: int = 0
    texts: int = 0
    tokens: int = 0
    rows: int = 0
    """Rows that the layers got; those beyond `tokens` are padding."""

    def __sub__(self, other: Counts) -> Counts:
        return Counts(**{name: value - getattr(other, name) for name, value in vars(self).items()})


class TimedExecutor:
    """An executor that counts its inputs and CPU time. A batch that runs between two layers of another one
    counts for both."""

    def __init__(self, executor: Chosen, counts: Counts) -> None:
        self._executor, self._counts = executor, counts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def run(
        self, key: BatchKey, rows: Rows, modules: Sequence[TenantModule | None], hooks: Sequence[Hook] = ()
    ) -> Iterator[Left]:
        counts, run = self._counts, self._executor.run(key, rows, modules, hooks)
        counts.batches, counts.texts = counts.batches + 1, counts.texts + len(rows.texts)
        counts.rows, counts.tokens = (
            counts.rows + len(rows.x),
            counts.tokens + sum(b - a for a, b in rows.spans()),
        )
        while True:
            begun = time.thread_time()
            try:
                left = next(run)
                counts.layers_s += left.waited_s
            except StopIteration:
                return
            finally:
                counts.layers_s += time.thread_time() - begun
            yield left


class TimedReader:
    """A PLOT reader that counts its look-ups' CPU time."""

    def __init__(self, reader: Reader, counts: Counts) -> None:
        self._reader, self._counts = reader, counts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def lookup(self, *args: Any, **named: Any) -> Any:
        begun = time.thread_time()
        try:
            return self._reader.lookup(*args, **named)
        finally:
            self._counts.retrieval_s += time.thread_time() - begun


class TimedBundles(Bundles):
    """Bundles whose readers and executors count into `counts`."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.counts = Counts()

    def upper(self, version: ModelVersion) -> Part[Upper]:
        part = super().upper(version)

        def make() -> Upper:
            found = part.make()
            return replace(found, executor=cast(Chosen, TimedExecutor(found.executor, self.counts)))

        return replace(part, make=make)

    def reader(self, version: ModelVersion) -> Part[Reader]:
        part = super().reader(version)
        return replace(part, make=lambda: cast(Reader, TimedReader(part.make(), self.counts)))
