"""The stage of early exits (Apparate, SOSP '24): a text leaves the upper layers once a ramp is sure enough.

A text is concerned if its model's version has ramps, its tenant has set `Objective.agreement`, it has one
window, and it is not exact. The state of each model is held here, by the artefact of its version.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Final

from hmi.core import ModelId
from hmi.execution.base import Hook
from hmi.execution.batch import BatchKey
from hmi.stages.base import OFF, Batch, Effect, Setting, Shape, Text
from hmi.stages.cascade.stage import inside
from hmi.stages.early_exit.control import Recorded
from hmi.stages.early_exit.costs import Measured
from hmi.stages.early_exit.hook import Asked, ExitHook
from hmi.stages.early_exit.report import ExitReport, Label
from hmi.stages.early_exit.state import ModelState

ON: Final = Setting("on")
MAX_MODELS = 4096
"""The artefacts whose state is held; those not seen for longest are dropped."""
PEERS = 4
"""The models whose records help to choose a new one's first thresholds, at most."""


class EarlyExit:
    """Early exits of all models. Thread-safe."""

    name = "exit"

    def __init__(self) -> None:
        self._states: OrderedDict[str, dict[ModelId, ModelState]] = OrderedDict()
        """By artefact, those seen last at the end. Models that share an artefact have states of their own,
        since the guarantee holds for each tenant's stream."""
        self._measured: dict[tuple[BatchKey, int], Measured] = {}
        self._lock = threading.Lock()

    def settings(self, key: BatchKey) -> Sequence[Setting]:
        return (OFF,) if key.exact else (OFF, ON)

    def effect(self, setting: Setting, shape: Shape) -> Effect:
        return Effect(rows=self._of(shape.key, shape.layers).entered)

    def hooks(self, setting: Setting, batch: Batch) -> Sequence[Hook]:
        measured = self._of(batch.key, batch.layers)
        asked: list[Asked] = []
        try:
            for index, objective in enumerate(batch.objectives):
                if objective.agreement is not None and not batch.key.exact:
                    asked += self._asked(index, batch.texts[index], objective.agreement, measured)
        except BaseException:
            ExitHook(batch, asked, measured).close()
            raise
        if asked:
            return [ExitHook(batch, asked, measured)]
        measured.passed(len(batch.objectives), {})
        return []

    def report(self, artefact: str, model: ModelId | None = None) -> ExitReport | None:
        """See `Exits.report`. model: which one, if several share the artefact; None: any."""
        found = self._held(artefact)
        state = next(iter(found.values()), None) if model is None else found.get(model)
        return None if state is None else state.report()

    def feedback(self, artefact: str, id: str, label: Label) -> bool:
        """See `Exits.feedback`."""
        return any(state.feedback(id, label) for state in self._held(artefact).values())

    def forget(self, artefacts: Collection[str]) -> None:
        """Drop the states of deleted artefacts. Batches in flight end as they began."""
        with self._lock:
            for artefact in artefacts:
                self._states.pop(artefact, None)

    def _asked(self, index: int, text: Text, agreement: float, measured: Measured) -> list[Asked]:
        """The text, if it is concerned and a ramp is to be asked for it."""
        ruled = inside(text) is not None  # its ramps obey the cascade
        if not text.version.ramps or not text.whole or text.task.name == "embedding" or ruled:
            return []
        state = self._state(text, agreement, measured)
        begun = state.begin(text.id)
        return [] if begun is None else [Asked(index, text, state, begun)]

    def _state(self, text: Text, agreement: float, measured: Measured) -> ModelState:
        artefact = text.version.artefact
        with self._lock:
            models = self._states.setdefault(artefact, {})
            self._states.move_to_end(artefact)
            state = models.get(text.model)
            if state is None or state.agreement != agreement:
                state = models[text.model] = ModelState(text, agreement, measured, self._others(text))
            while len(self._states) > MAX_MODELS:
                self._states.popitem(last=False)
            return state

    def _others(self, text: Text) -> list[Recorded]:
        """Records of other models for a new one's first window: its domain's first, then its root's."""
        version = text.version
        about = text.task.name, version.root, version.root_version, version.ramps
        peers = [s for models in self._states.values() for s in models.values() if s.peers == about]
        peers.sort(key=lambda state: state.domain != version.domain)
        return [found for state in peers[:PEERS] if len((found := state.records())[1])]

    def _held(self, artefact: str) -> dict[ModelId, ModelState]:
        with self._lock:
            return dict(self._states.get(artefact, {}))

    def _of(self, key: BatchKey, layers: int) -> Measured:
        with self._lock:
            return self._measured.setdefault((key, layers), Measured(key, layers))
