"""The stage of early exits (Apparate, SOSP '24): a text leaves the upper layers once a ramp is sure enough.

A text is concerned if its model's version has ramps, its tenant has set `Objective.agreement`, it has one
window, and it is not exact. Each model has a state of its own (`States`), by the artefact of its version.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from hmi.core import ModelId
from hmi.execution.base import Hook
from hmi.execution.batch import BatchKey
from hmi.stages.base import OFF, Effect, Setting, Shape, StageBatch, Text
from hmi.stages.cascade.stage import inner_cascade
from hmi.stages.early_exit.costs import ExitCosts
from hmi.stages.early_exit.hook import AskedText, ExitHook
from hmi.stages.early_exit.report import ExitReport, Label, Totals
from hmi.stages.early_exit.states import States
from hmi.stages.owed import Owed

ON: Final = Setting("on")


class EarlyExit:
    """Early exits of all models. Thread-safe."""

    name = "exit"

    def __init__(self, folder: Path | None = None) -> None:
        """folder: of the states that are not in memory, also an earlier engine's; None: they are lost."""
        self._states = States(folder)
        self._measured: dict[tuple[BatchKey, int], ExitCosts] = {}
        self._lock = threading.Lock()
        """For new entries of `_measured`."""
        self.owed = Owed[AskedText](lambda one: one.state.abandon(one.begun))
        """The audits that failed batches have cut short."""

    def settings(self, key: BatchKey) -> Sequence[Setting]:
        return (OFF,) if key.exact else (OFF, ON)

    def effect(self, setting: Setting, shape: Shape) -> Effect:
        """Batches are cut as without the stage: how many texts leave depends on the models in them, and a
        batch whose texts leave ends sooner."""
        return Effect(rows=(1.0,) * shape.layers)

    def hooks(self, setting: Setting, batch: StageBatch) -> Sequence[Hook]:
        begun, measured = time.thread_time(), self._of(batch.key, batch.layers)
        asked: list[AskedText] = []
        try:
            for index in () if batch.key.exact else self._awake(batch):
                asked += self._asked(index, batch.texts[index], measured)
        except BaseException:
            ExitHook(batch, asked, measured).close()
            raise
        if asked:
            return [ExitHook(batch, asked, measured, time.thread_time() - begun, self.owed)]
        return []

    def _awake(self, batch: StageBatch) -> list[int]:
        """The texts with an objective whose models are not off. A text is looked at only if it is one of
        these, since that costs more than all else that is done for a model that is off."""
        able = [i for i, objective in enumerate(batch.objectives) if objective.agreement is not None]
        if not batch.versions or not able:
            return able
        groups: dict[tuple[str, ModelId], list[int]] = {}
        for i in able:
            model, version, _ = batch.versions[i]
            if version.ramps:
                groups.setdefault((version.artefact, model), []).append(i)
        awake: list[int] = []
        for (artefact, model), texts in groups.items():
            state = self._states.find(artefact, model)
            same = state is not None and state.agreement == batch.objectives[texts[0]].agreement
            if state is None or not same or not state.skip(len(texts)):
                awake += texts
        return sorted(awake)

    def report(self, artefact: str, model: ModelId | None = None) -> ExitReport | None:
        """See `Exits.report`. model: which one, if several share the artefact; None: any."""
        return self._states.report(artefact, model)

    def feedback(self, artefact: str, id: str, label: Label, model: ModelId | None = None) -> bool:
        """See `Exits.feedback`. model: as of `report`."""
        return any(state.feedback(id, label) for state in self._states.known(artefact, model))

    def totals(self) -> Totals:
        """See `Exits.totals`."""
        return self._states.totals()

    def forget(self, artefacts: Collection[str], models: Collection[ModelId] = ()) -> None:
        """Drop the states of deleted artefacts. Batches in flight end as they began.

        models: those deleted, since others may have the artefacts too; (): all that have them.
        """
        self._states.forget(artefacts, models)

    def close(self) -> None:
        """Put the states of all models away. Called when no batch runs any more."""
        self._states.close()

    def _asked(self, index: int, text: Text, measured: ExitCosts) -> list[AskedText]:
        """The text, if it is concerned and a ramp is to be asked for it."""
        if (owed := self.owed.take(text.nonce)) is not None:
            return [replace(owed, index=index, text=text, outputs={}, again=True)]
        ruled = inner_cascade(text) is not None  # its ramps obey the cascade
        may = text.version.ramps and text.whole and text.early and text.task.name != "embedding"
        agreement = text.objective.agreement
        if ruled or not may or agreement is None:
            return []
        state = self._states.of(text, agreement, measured)
        begun = state.begin(text.nonce, agreement)
        return [] if begun is None else [AskedText(index, text, state, begun)]

    def _of(self, key: BatchKey, layers: int) -> ExitCosts:
        of = key, layers
        found = self._measured.get(of)
        if found is not None:
            return found
        with self._lock:
            return self._measured.setdefault(of, ExitCosts(key, layers))
