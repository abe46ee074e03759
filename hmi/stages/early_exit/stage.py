"""The stage of early exits (Apparate, SOSP '24): a text leaves the upper layers once a ramp is sure enough.

A text is concerned if its model's version has ramps, its tenant has set `Objective.agreement`, it has one
window, and it is not exact. The state of each model is held here, by the artefact of its version.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

from hmi.core import ModelId
from hmi.execution.base import Hook
from hmi.execution.batch import BatchKey
from hmi.stages.base import OFF, Batch, Effect, Setting, Shape, Text
from hmi.stages.cascade.stage import inside
from hmi.stages.early_exit.control import Recorded
from hmi.stages.early_exit.costs import Measured
from hmi.stages.early_exit.hook import Asked, ExitHook
from hmi.stages.early_exit.report import ExitReport, Label, Totals
from hmi.stages.early_exit.state import ModelState

ON: Final = Setting("on")
MAX_MODELS = 4096
"""The artefacts whose state is held; those not seen for longest are dropped."""
PEERS = 4
"""The models whose records help to choose a new one's first thresholds, at most."""


class EarlyExit:
    """Early exits of all models. Thread-safe."""

    name = "exit"

    def __init__(self, folder: Path | None = None) -> None:
        """folder: where `close` writes the states that a later engine takes over; None: nowhere."""
        self._folder = folder
        self._states: OrderedDict[str, dict[ModelId, ModelState]] = OrderedDict()
        """By artefact, those seen last at the end. Models that share an artefact have states of their own,
        since the guarantee holds for each tenant's stream."""
        self._measured: dict[tuple[BatchKey, int], Measured] = {}
        self._lock = threading.Lock()
        self._gone = Totals({}, 0, 0, 0)
        """The counts of the states that were dropped."""

    def settings(self, key: BatchKey) -> Sequence[Setting]:
        return (OFF,) if key.exact else (OFF, ON)

    def effect(self, setting: Setting, shape: Shape) -> Effect:
        """Batches are cut as without the stage: how many texts leave depends on the models in them, and a
        batch whose texts leave ends sooner."""
        return Effect(rows=(1.0,) * shape.layers)

    def hooks(self, setting: Setting, batch: Batch) -> Sequence[Hook]:
        begun, measured = time.thread_time(), self._of(batch.key, batch.layers)
        asked: list[Asked] = []
        try:
            for index in () if batch.key.exact else self._awake(batch):
                asked += self._asked(index, batch.texts[index], measured)
        except BaseException:
            ExitHook(batch, asked, measured).close()
            raise
        if asked:
            return [ExitHook(batch, asked, measured, time.thread_time() - begun)]
        return []

    def _awake(self, batch: Batch) -> list[int]:
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
            with self._lock:
                state = self._states.get(artefact, {}).get(model)
                if state is not None:
                    self._states.move_to_end(artefact)
            same = state is not None and state.agreement == batch.objectives[texts[0]].agreement
            if state is None or not same or not state.skip(len(texts)):
                awake += texts
        return sorted(awake)

    def report(self, artefact: str, model: ModelId | None = None) -> ExitReport | None:
        """See `Exits.report`. model: which one, if several share the artefact; None: any."""
        found = self._held(artefact)
        state = next(iter(found.values()), None) if model is None else found.get(model)
        return None if state is None else state.report()

    def feedback(self, artefact: str, id: str, label: Label, model: ModelId | None = None) -> bool:
        """See `Exits.feedback`. model: as of `report`."""
        found = self._held(artefact)
        return any(s.feedback(id, label) for name, s in found.items() if model in (None, name))

    def totals(self) -> Totals:
        """See `Exits.totals`."""
        with self._lock:
            held = [state for models in self._states.values() for state in models.values()]
            gone = self._gone
        counted = [gone, *(state.totals() for state in held)]
        return Totals(
            sum((Counter(each.states) for each in counted), Counter()),
            *(sum(getattr(each, name) for each in counted) for name in ("audits", "disagreed", "alarms")),
        )

    def forget(self, artefacts: Collection[str]) -> None:
        """Drop the states of deleted artefacts. Batches in flight end as they began."""
        with self._lock:
            for artefact in artefacts:
                self._drop(self._states.pop(artefact, {}).values())
                if self._folder is not None:
                    for path in self._folder.glob(f"{artefact}.*"):
                        path.unlink(missing_ok=True)

    def close(self) -> None:
        """Write the states of all models. Called when no batch runs any more."""
        with self._lock:
            while self._states:
                self._write(*self._states.popitem())

    def _asked(self, index: int, text: Text, measured: Measured) -> list[Asked]:
        """The text, if it is concerned and a ramp is to be asked for it."""
        ruled = inside(text) is not None  # its ramps obey the cascade
        may = text.version.ramps and text.whole and text.early and text.task.name != "embedding"
        agreement = text.objective.agreement
        if ruled or not may or agreement is None:
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
                self._drop([] if state is None else [state])
                state = models[text.model] = ModelState(text, agreement, measured, self._others(text))
                if (path := self._path(artefact, text.model)) is not None:
                    state.restore(path)
            while len(self._states) > MAX_MODELS:
                oldest, others = self._states.popitem(last=False)
                self._write(oldest, others)
                self._drop(others.values())
            return state

    def _write(self, artefact: str, models: dict[ModelId, ModelState]) -> None:
        for model, state in models.items():
            if (path := self._path(artefact, model)) is not None:
                state.write(path)

    def _path(self, artefact: str, model: ModelId) -> Path | None:
        return None if self._folder is None else self._folder / f"{artefact}.{model}"

    def _drop(self, states: Iterable[ModelState]) -> None:
        """Keep the counts of states that are dropped. The caller holds the lock."""
        for counts in (state.totals() for state in states):
            gone = self._gone
            self._gone = Totals(
                {},
                gone.audits + counts.audits,
                gone.disagreed + counts.disagreed,
                gone.alarms + counts.alarms,
            )

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
        of = key, layers
        found = self._measured.get(of)
        if found is not None:
            return found
        with self._lock:
            return self._measured.setdefault(of, Measured(key, layers))
