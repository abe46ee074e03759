"""The stage of cascades inside one root: a ramp of the model is the small level, its later layers the large
one.

Going on costs only the layers that have not run. A cascade of two models on two roots is no stage
(`hmi.engine.levels`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from hmi.core import Cascade, ModelId, Objective
from hmi.execution.base import Hook
from hmi.execution.batch import BatchKey
from hmi.stages.base import OFF, Batch, Effect, Setting, Shape, Text
from hmi.stages.cascade.hook import Concern, InsideHook
from hmi.stages.cascade.report import CascadeReport
from hmi.stages.cascade.standing import Standing

ON = Setting("inside")
TASKS = ("classification", "pair")
"""The tasks with one label for a text, which have a confidence that the dispatcher knows."""
MOST = 16_384
"""The models whose standings are kept; the one that has not been asked for longest begins anew."""
Terms = tuple[Cascade, Objective]


def inside(text: Text) -> Cascade | None:
    """The cascade that decides about a text, if its model has one inside. Exits leave such a text alone."""
    cascade, version = text.cascade, text.version
    if cascade is None or cascade.small is not None or text.objective.agreement is None:
        return None
    holds = cascade.version == version.version and cascade.site in version.ramps
    may = text.whole and text.early and text.task.name in TASKS
    return cascade if holds and may else None


class CascadeInside:
    """A `Stage`. It keeps the standing of each version's cascade, which a new version begins anew."""

    name = "cascade"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._standings: OrderedDict[tuple[ModelId, str], tuple[Terms, Standing]] = OrderedDict()
        """By model and artefact, the one asked last at the end."""

    def settings(self, key: BatchKey) -> Sequence[Setting]:
        return (OFF,) if key.exact else (OFF, ON)

    def effect(self, setting: Setting, shape: Shape) -> Effect:
        """Batches are cut as without the stage: how many texts leave depends on the models in them."""
        return Effect(rows=(1.0,) * shape.layers)

    def hooks(self, setting: Setting, batch: Batch) -> Sequence[Hook]:
        """See `Stage.hooks`."""
        if batch.key.exact:
            return []
        # To make texts costs more than to look at objectives, which few models have.
        able = [i for i, objective in enumerate(batch.objectives) if objective.agreement is not None]
        if batch.versions:
            able = [i for i in able if batch.versions[i][2] is not None]
        concerns = {i: c for i in able if (c := self._concern(batch.texts[i])) is not None}
        return [InsideHook(batch, concerns)] if concerns else []

    def report(self, model: ModelId, artefact: str) -> CascadeReport | None:
        """What a version's cascade did; None if no text has asked for it."""
        with self._lock:
            found = self._standings.get((model, artefact))
        return None if found is None else found[1].report

    def _concern(self, text: Text) -> Concern | None:
        cascade = inside(text)
        return None if cascade is None else Concern(text, self._standing(text, cascade), cascade)

    def _standing(self, text: Text, cascade: Cascade) -> Standing:
        """The version's standing. Another cascade or objective begins one of its own."""
        key, terms = (text.model, text.version.artefact), (cascade, text.objective)
        with self._lock:
            found = self._standings.get(key)
            if found is None or found[0] != terms:
                found = self._standings[key] = terms, Standing(cascade, text.objective)
            self._standings.move_to_end(key)
            if len(self._standings) > MOST:
                self._standings.popitem(last=False)
        return found[1]
