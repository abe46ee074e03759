"""Models that are published, rolled back, deleted and made again while they answer."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bench.harness.home import publish_at_once
from hmi.core import ModelId, ModelVersion
from hmi.manager import Manager

VARIANTS = 2
"""Artefacts of a model. Its version n has artefact n % 2, also after it was deleted and made again."""
ANSWERS_A_CHANGE = 16
"""Answers for each change. Their number counts, not the time, so that a slow or paused run has as many."""


@dataclass
class Span:
    """The times, by `time.monotonic()`, between which a version may answer. None: no model is there."""

    version: int | None
    begun: float
    ended: float = math.inf


class Churn:
    """Changes tenants' models one after another, and remembers when each version was live."""

    def __init__(
        self, manager: Manager, versions: Sequence[Sequence[ModelVersion]], models: Sequence[ModelId]
    ) -> None:
        """versions: by model, the records of its two variants, of which the second is live."""
        self._manager, self._versions, self.models = manager, versions, models
        self._live = [[Span(VARIANTS, 0.0)] for _ in models]
        self._draw = np.random.default_rng(0)
        self._ways: tuple[tuple[str, Callable[[int], None]], ...] = (
            ("publish", self._publish),
            ("roll back", self._roll_back),
            ("publish", self._publish),
            ("delete and create a model", self._make_again),
            ("publish", self._publish),
            ("delete and create a tenant", self._new_tenant),
        )
        self._changing = False
        self.done: Counter[str] = Counter()
        """The changes that were made, by their names."""

    def variant(self, version: int) -> int:
        return version % VARIANTS

    def was_live(self, model: int, version: int | None, since: float, until: float) -> bool:
        """Return whether the version may have been live at a time from `since` to `until`."""
        spans = self._live[model]
        return any(s.version == version and s.begun <= until and s.ended >= since for s in reversed(spans))

    async def keep_up(self, answers: Callable[[], int]) -> None:
        """Change random models until there is a change for each ANSWERS_A_CHANGE of `answers()`.

        Returns at once while another caller's changes run.
        """
        if self._changing:
            return
        self._changing = True
        try:
            while (count := self.done.total()) * ANSWERS_A_CHANGE < answers():
                name, change = self._ways[count % len(self._ways)]
                await asyncio.to_thread(change, int(self._draw.integers(len(self.models))))
                self.done[name] += 1
        finally:
            self._changing = False

    def _publish(self, model: int) -> None:
        record = self._manager.registry.model(self.models[model])
        number = max(v.version for v in record.versions) + 1
        self._change(model, number, lambda: self._put(model, number))

    def _roll_back(self, model: int) -> None:
        record = self._manager.registry.model(self.models[model])
        number = int(self._draw.choice([v.version for v in record.versions]))
        self._change(model, number, lambda: self._manager.rollback_model(str(self.models[model]), number))

    def _make_again(self, model: int) -> None:
        self._change(model, None, lambda: self._manager.delete_model(str(self.models[model])))
        self._change(model, 1, lambda: self._put(model, 1))

    def _new_tenant(self, model: int) -> None:
        tenant = self.models[model].tenant
        self._change(model, None, lambda: self._manager.delete_tenant(tenant))
        first = self._version(model, 1)
        self._change(model, 1, lambda: publish_at_once(self._manager, [(self.models[model], first)]))

    def _put(self, model: int, number: int) -> None:
        self._manager.registry.publish_model(self.models[model], self._version(model, number))

    def _version(self, model: int, number: int) -> ModelVersion:
        kept = self._versions[model][self.variant(number)]
        return kept.model_copy(update={"version": number, "job": f"{kept.job}-{number}"})

    def _change(self, model: int, version: int | None, write: Callable[[], object]) -> None:
        """Write a change. While the write runs, the old and the new version may answer."""
        spans = self._live[model]
        spans.append(Span(version, time.monotonic()))
        write()
        spans[-2].ended = time.monotonic()
