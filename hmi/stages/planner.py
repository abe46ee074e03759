"""The planner: picks which of the queue's candidates runs next, and the settings of the stages for it.

The queue then cuts the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from hmi.core import Cascade, ModelId, ModelVersion, Objective
from hmi.execution.batch import BatchKey
from hmi.stages.base import OFF, Setting, Shape, Stage
from hmi.stages.planning.group import Group, Price


@dataclass(frozen=True, order=True)
class Candidate:
    """The waiting texts of one batch key, described by the tenant among them whose turn is next."""

    given_s: float
    """Compute seconds that the tenant has received, divided by its weight."""
    since: float
    """The `time.monotonic()` at which the text that the tenant wants next was queued."""
    tenant: str
    key: BatchKey
    layers: int
    """The number of upper layers of the key's root."""
    groups: Sequence[Group] = field(default=(), compare=False)
    """The key's groups of texts with a deadline or a utility, in any order."""
    expected: Sequence[Group] = field(default=(), compare=False)
    """Groups that are expected to arrive soon. They cannot run yet."""
    grouped: bool = field(default=False, compare=False)
    """True if the text that the tenant wants next is in a group. If not, it is an ordinary text."""
    waiting_s: float = field(default=0.0, compare=False)
    """Predicted seconds of all streams for the key's waiting texts, with all stages off."""


@dataclass(frozen=True)
class Plan:
    """The batch that runs next, and the settings of its stages."""

    candidate: Candidate
    settings: Mapping[str, Setting] = field(default_factory=dict)
    """By stage; a stage that is missing is off."""
    group: int | None = None
    """The id of the group of the candidate's that the batch consists of. None: ordinary texts."""
    why: str = ""
    """The reason in a few words, for provenance and metrics."""
    index: int = 0
    """The index of the settings in `Price.seconds`. 0: off, or not priced."""
    kind: str = ""
    """The reason in one word of a few, to count plans by; "": in turn."""
    dropped: int = 0
    """The number of groups that the plan leaves out."""

    @property
    def on(self) -> dict[str, Setting]:
        """The settings of the stages that are not off."""
        # To compare names costs less than to compare settings, and this is read for each batch.
        return {
            name: setting
            for name, setting in self.settings.items()
            if setting is not OFF and (setting.name != OFF.name or setting != OFF)
        }


@dataclass(frozen=True)
class BatchCost:
    """The measured cost of a batch."""

    texts: int
    tokens: int
    cpu_s: float
    """CPU seconds of the thread that ran it."""
    modules: int = 1
    """The number of distinct modules."""
    priced_s: Sequence[float] = ()
    """[settings]: the sums of the texts' `Price.seconds`. (): the texts were not all priced, or a part of one
    was left out."""
    wall_s: float = 0.0
    """Seconds by the clock, which deadlines go by. 0: not measured."""


@dataclass(frozen=True)
class Waiting:
    """A text that waits, as a planner prices it."""

    key: BatchKey
    layers: int
    """The number of upper layers of the key's root."""
    windows: Sequence[int]
    """The tokens of each of its windows that wait."""
    model: ModelId
    version: ModelVersion
    objective: Objective
    utility: float = 1.0
    cascade: Cascade | None = None
    whole: bool = True
    """False for a text of several windows, whether or not some of them have run."""


@dataclass(frozen=True)
class SettingEffect:
    """The effect of one setting of a stage on the texts of one model."""

    rows: tuple[float, ...]
    """[layers]: the fraction of a text's rows that enter each layer."""
    accuracy: float
    """The expected accuracy of its answers, in the units of the task's headline figure."""
    name: str = "off"
    """The name of the setting that these texts get: the boldest, up to the batch's, that their model and its
    objective allow."""
    shortest: int = 0
    """The tokens that a text has at least if the setting concerns it. A shorter one stays off."""
    whole: bool = False
    """True if the setting concerns texts of one window only."""


@runtime_checkable
class Adaptive(Protocol):
    """A stage among whose settings a planner chooses by load and deadlines."""

    def terms(self, text: Waiting) -> Sequence[SettingEffect]:
        """Return one entry for each of `settings(text.key)`, in their order. The first is that of OFF.

        They hold for all texts of the model with the objective: a planner remembers them for a second.
        """
        ...


def work_left(plan: Plan, stages: Sequence[Stage]) -> float:
    """The fraction of the layers' work that the plan's stages are expected to leave."""
    on, left = plan.on, 1.0
    if on:
        shape = Shape(plan.candidate.key, plan.candidate.layers)
        for stage in stages:
            setting = on.get(stage.name)
            left *= 1.0 if setting is None else stage.effect(setting, shape).work
    return left


class Planner(Protocol):
    """Chooses batches and settings. Called on the event loop's thread, so it must not block."""

    @property
    def stages(self) -> Sequence[Stage]:
        """The stages whose settings it chooses."""
        ...

    def price(self, text: Waiting) -> Price | None:
        """Return the text's value and cost under each setting. None: the planner forms no groups."""
        ...

    def plan(self, candidates: Sequence[Candidate], now: float) -> Plan:
        """Pick any of the candidates; there is at least one. now: `time.monotonic()`.

        A tenant that is passed over loses nothing: it still counts as the one that has received least.
        """
        ...

    def learn(self, plan: Plan, measured: BatchCost) -> None:
        """Take note of what a batch of this plan cost. Not called if all texts of the batch failed."""
        ...


class RoundRobin:
    """Picks the tenant that has received least, on a tie the one whose first text waits longest.

    Each stage runs under the last of its settings for the batch.
    """

    def __init__(self, stages: Sequence[Stage] = ()) -> None:
        self.stages = stages

    def price(self, text: Waiting) -> Price | None:
        """Return None: turns alone decide."""
        return None

    def plan(self, candidates: Sequence[Candidate], now: float) -> Plan:
        chosen = min(candidates)
        return Plan(chosen, {stage.name: stage.settings(chosen.key)[-1] for stage in self.stages})

    def learn(self, plan: Plan, measured: BatchCost) -> None:
        """Do nothing: the plan does not depend on measurements."""
