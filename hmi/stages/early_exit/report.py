"""The report of one model's early exits, for people and for the API. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from hmi.core import ModelId

State = Literal["collecting", "testing", "open", "paused", "off"]
"""collecting: full answers are recorded until policies can be tuned. testing: they wait for evidence.
open: texts may leave early. paused: they may not at present, since the disagreements that the audits allow
for are used up; they may again after more texts. off: every ramp costs more time than it saves."""
Label = str | float | Sequence[str]
"""A right answer in the task's JSON form: a label, a value, a list of labels, or a list of tags."""


@dataclass(frozen=True)
class LabelAgreement:
    """Answers that were compared with labels that came later."""

    seen: int = 0
    right: int = 0
    at_least: float = 0.0
    """Clopper–Pearson's bounds of the accuracy: each is wrong with a probability of 5%."""
    at_most: float = 1.0


@dataclass(frozen=True)
class ExitReport:
    """The early exits of one version of a model since its counts began."""

    state: State
    agreement: float
    """The fraction of answers that must equal the full model's (`Objective.agreement`)."""
    texts: int
    """The texts that were concerned: of one window, not exact."""
    left: Mapping[int, int]
    """The number of texts that left at a site, by site, ascending."""
    share: float
    """The fraction of texts that are audited at present."""
    audits: int
    """The texts that were audited while others could leave."""
    disagreed: int
    """The audits whose early answer differed from the full model's."""
    agreement_at_least: float
    """Clopper–Pearson's lower bound, 95%, of the fraction of those texts whose answer is the full model's."""
    sites: tuple[int, ...]
    """The ramps that are in use, by the upper layer before which they are; 0 is right after retrieval."""
    thresholds: tuple[float, ...]
    """The thresholds, by these sites: a text leaves if its uncertainty is below. All 0: no text leaves at
    present."""
    policies: int
    """The number of ladders of thresholds that were put to the test."""
    alarms: int
    """The number of alarms: audits or labels showed that the texts had changed, and everything began again.
    """
    saved: float
    """The fraction of the upper layers' time that exits have saved, less what the stage cost: `avoided` less
    what the ramps, and the stage besides, took. Of the texts that came while exits were not off."""
    early: LabelAgreement = LabelAgreement()
    """Answers of texts that left early."""
    full: LabelAgreement = LabelAgreement()
    """Answers of texts that went through all layers."""
    counted: int = 0
    """collecting: the records so far. testing: the audits of the thresholds under test so far."""
    needed: int = 0
    """collecting: the records before thresholds are tuned. testing: the audits after which the most careful
    ones may be used, if no further one disagrees."""
    borrowed: int = 0
    """collecting: the records of `counted` that are other models', of the same task, root and ramps."""
    skipped: int = 0
    """The texts that came while exits were off. They count in `texts`, but not in any time."""
    checked: Mapping[int, int] = field(default_factory=dict)
    """The texts of `left` whose layers ran on for an audit, by site."""
    sooner: float = 0.0
    """The fraction of the upper layers' time by which answers came sooner, in the mean over all texts."""
    avoided: float = 0.0
    """The fraction of the upper layers' time that was not run for texts which left."""
    layers_ms: float | None = None
    """The mean time of all upper layers for a text, as measured lately; None if it was not yet."""
    avoids: Mapping[int, float] = field(default_factory=dict)
    """The fraction of `layers_ms` that a text which leaves at a site does not need, by site."""


@dataclass(frozen=True)
class Totals:
    """Counts over all models since the server started, also of those that are not in memory any more."""

    states: Mapping[str, int]
    """The number of models in each state."""
    audits: int
    disagreed: int
    alarms: int


class Exits(Protocol):
    """The early exits of all models, by artefact (`ModelVersion.artefact`). Thread-safe; never waits long."""

    def report(self, artefact: str, model: ModelId | None = None) -> ExitReport | None:
        """Return what is known of a model, as of its last text; None if no text of it has been concerned
        since the start.

        model: which one, if several have the same artefact; None: any.
        """
        ...

    def totals(self) -> Totals:
        """Return the counts of all models, for metrics. Cheap even with thousands of models."""
        ...

    def feedback(self, artefact: str, id: str, label: Label, model: ModelId | None = None) -> bool:
        """Compare an answer with its right label. Returns whether the answer is known.

        id: that of the text (`TextRequest.id`). A model's last 4,096 answers are known, each until it got a
        label, and none after the model's state has left memory.
        """
        ...
