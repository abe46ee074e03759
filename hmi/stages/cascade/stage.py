"""The stage of cascades inside one root: a ramp of the model is the small level, its later layers the large
one.

Going on costs only the layers that have not run. A cascade of two models on two roots is no stage
(`hmi.engine.levels`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from hmi.core import Cascade, ModelId, Objective, Offer
from hmi.execution.base import Hook
from hmi.execution.batch import BatchKey
from hmi.stages.base import OFF, Batch, Effect, Setting, Shape, Text
from hmi.stages.cascade.gate import Counts, Trial, offers_for, terms_for
from hmi.stages.cascade.hook import Concern, InsideHook

ON = Setting("inside")
TASKS = ("classification", "pair")
"""The tasks with one label for a text, which have a confidence that the dispatcher knows."""
MOST = 16_384
"""The models whose tests are remembered; those that have not been asked for longest begin anew."""
Terms = tuple[Cascade, Objective]


def inside(text: Text) -> Cascade | None:
    """The cascade that decides about a text, if its model has one inside. Exits leave such a text alone."""
    cascade, version = text.cascade, text.version
    if cascade is None or cascade.small is not None or text.objective.agreement is None:
        return None
    holds = cascade.version == version.version and cascade.site in version.ramps
    return cascade if holds and text.task.name in TASKS and text.whole else None


class CascadeInside:
    """A `Stage`. It keeps the tests of each version's offers, which a new version begins anew."""

    name = "cascade"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._trials: OrderedDict[tuple[ModelId, str], tuple[Terms, tuple[Offer, ...], Trial]] = OrderedDict()
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
        concerns = {i: c for i, text in enumerate(batch.texts) if (c := self._concern(text)) is not None}
        return [InsideHook(batch, concerns)] if concerns else []

    def counts(self, model: ModelId, artefact: str) -> Counts | None:
        """The state of a version's cascade; None if no text has asked for it."""
        with self._lock:
            found = self._trials.get((model, artefact))
        return None if found is None else found[2].counts

    def _concern(self, text: Text) -> Concern | None:
        cascade = inside(text)
        if cascade is None or cascade.site is None:
            return None
        offers, trial = self._trial(text, cascade)
        return Concern(text, offers, trial, cascade.site, cascade.temperature) if offers else None

    def _trial(self, text: Text, cascade: Cascade) -> tuple[tuple[Offer, ...], Trial]:
        """The offers under test, and their test. Another cascade or objective begins a test of its own."""
        key, terms = (text.model, text.version.artefact), (cascade, text.objective)
        assert text.objective.agreement is not None
        with self._lock:
            found = self._trials.get(key)
            if found is None or (found[0] is not terms and found[0] != terms):
                offers = offers_for(cascade, text.objective)
                found = terms, offers, Trial(len(offers), terms_for(text.objective.agreement))
                self._trials[key] = found
            self._trials.move_to_end(key)
            while len(self._trials) > MOST:
                self._trials.popitem(last=False)
        return found[1], found[2]
