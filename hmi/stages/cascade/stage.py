"""The stage of cascades inside one root: a ramp of the model is the small level, its later layers the large
one.

Going on costs only the layers that have not run. A cascade of two models on two roots is no stage
(`hmi.engine.adaptive.levels`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from hmi.core import CASCADE_TASKS, Cascade, ModelId
from hmi.execution.base import Hook
from hmi.execution.batch import BatchKey
from hmi.stages.base import OFF, Effect, Setting, Shape, StageBatch, Text
from hmi.stages.cascade.hook import Concern, Decided, InsideHook, lost
from hmi.stages.cascade.report import CascadeReport
from hmi.stages.cascade.standing import VersionEvidence
from hmi.stages.cascade.watched import Evidence
from hmi.stages.owed import Owed

ON = Setting("inside")
MOST = 16_384
"""The models whose evidence is kept."""


def inner_cascade(text: Text) -> Cascade | None:
    """The cascade that decides about a text, if its model has one inside. Exits leave such a text alone."""
    cascade, version = text.cascade, text.version
    if cascade is None or cascade.small is not None or text.objective.agreement is None:
        return None
    holds = cascade.version == version.version and cascade.site in version.ramps
    may = text.whole and text.early and text.task.name in CASCADE_TASKS
    return cascade if holds and may else None


class CascadeInside:
    """A `Stage`. It keeps the evidence of each version's cascade, which a new version begins anew."""

    name = "cascade"

    def __init__(self, path: Path | None = None) -> None:
        """path: of the file of evidence (`Evidence`)."""
        self._evidence = Evidence(MOST, path)
        self.owed = Owed[Decided](lost)
        """The audits that failed batches have cut short."""

    def close(self) -> None:
        """Write the evidence to its file."""
        self._evidence.close()

    def settings(self, key: BatchKey) -> Sequence[Setting]:
        return (OFF,) if key.exact else (OFF, ON)

    def effect(self, setting: Setting, shape: Shape) -> Effect:
        """Batches are cut as without the stage: how many texts leave depends on the models in them."""
        return Effect(rows=(1.0,) * shape.layers)

    def hooks(self, setting: Setting, batch: StageBatch) -> Sequence[Hook]:
        """See `Stage.hooks`."""
        if batch.key.exact:
            return []
        # To make texts costs more than to look at objectives, which few models have.
        able = [i for i, objective in enumerate(batch.objectives) if objective.agreement is not None]
        if batch.versions:
            able = [i for i in able if batch.versions[i][2] is not None]
        concerns = {i: c for i in able if (c := self._concern(batch.texts[i])) is not None}
        return [InsideHook(batch, concerns, self.owed)] if concerns else []

    def report(
        self, model: ModelId, artefact: str, small_artefact: str, agreement: float | None
    ) -> CascadeReport | None:
        """Return the traffic of a version's cascade under an agreement; None if no text has asked for it.

        small_artefact: "", since the small level is the version's own ramp.
        """
        return self._evidence.report(model, artefact, small_artefact, agreement)

    def forget(self, artefacts: Collection[str]) -> None:
        """Drop the evidence of deleted artefacts. Batches in flight end as they began."""
        self._evidence.forget(artefacts)

    def _concern(self, text: Text) -> Concern | None:
        cascade = inner_cascade(text)
        if cascade is None:
            return None
        watched = self._evidence.of(text.model, text.version.artefact, cascade, text.objective)
        return Concern(text, VersionEvidence(watched), cascade)
