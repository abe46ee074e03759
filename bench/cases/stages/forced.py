"""Early exits whose sites the requests' ids name: gates are open by construction, all else is the stage's."""

from __future__ import annotations

from collections.abc import Sequence

from hmi.core import ModelId
from hmi.execution.base import Hook
from hmi.execution.batch import BatchKey
from hmi.stages import OFF, Batch, Effect, Setting, Shape
from hmi.stages.early_exit.control import Begun
from hmi.stages.early_exit.costs import Measured
from hmi.stages.early_exit.hook import Asked, ExitHook
from hmi.stages.early_exit.state import Ended, ModelState

FORCED = Setting("forced")
AT = "@"


class Unbounded(ModelState):
    """A state that lets every text leave that asks."""

    def leave(self, one: Ended, ramp: int) -> bool:
        return True


class Forced:
    """A text whose id ends with `@2` leaves before layer 2, if its model has a ramp there."""

    name = "forced-exit"

    def __init__(self) -> None:
        self._states: dict[ModelId, ModelState] = {}
        self._measured: dict[tuple[BatchKey, int], Measured] = {}

    def settings(self, key: BatchKey) -> Sequence[Setting]:
        return (OFF, FORCED)

    def effect(self, setting: Setting, shape: Shape) -> Effect:
        return Effect(rows=(1.0,) * shape.layers)

    def hooks(self, setting: Setting, batch: Batch) -> Sequence[Hook]:
        known = batch.key, batch.layers
        measured = self._measured.setdefault(known, Measured(*known))
        asked = []
        for index, text in enumerate(batch.texts):
            thresholds = tuple(float(site == site_of(text.id)) for site in text.version.ramps)
            if any(thresholds):
                state = self._states.get(text.model)
                if state is None:
                    state = self._states.setdefault(text.model, Unbounded(text, 0.99, measured))
                asked.append(Asked(index, text, state, Begun(thresholds, False, state.control.account.count)))
        return [ExitHook(batch, asked, measured)] if asked else []


def id_of(name: str, site: int) -> str:
    """The id of a text that leaves at `site`, or that stays, if its model has no ramp there."""
    return f"{name}{AT}{site}"


def site_of(id: str) -> int:
    _, at, site = id.rpartition(AT)
    return int(site) if at else -1
