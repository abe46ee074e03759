"""The planner: picks which of the queue's candidates runs next, and the settings of the stages for it.

The queue then cuts the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hmi.execution.batch import BatchKey
from hmi.stages.base import OFF, Setting, Shape, Stage


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


@dataclass(frozen=True)
class Plan:
    """The batch that runs next, and the settings of its stages."""

    candidate: Candidate
    settings: Mapping[str, Setting] = field(default_factory=dict)
    """By stage; a stage that is missing is off."""

    @property
    def on(self) -> dict[str, Setting]:
        """The settings of the stages that are not off."""
        return {name: setting for name, setting in self.settings.items() if setting != OFF}


@dataclass(frozen=True)
class Measured:
    """The measured cost of a batch."""

    texts: int
    tokens: int
    cpu_s: float
    """CPU seconds of the thread that ran it."""


def work_left(plan: Plan, stages: Sequence[Stage]) -> float:
    """The fraction of the layers' work that the plan's stages are expected to leave."""
    shape, left = Shape(plan.candidate.key, plan.candidate.layers), 1.0
    for stage in stages:
        setting = plan.on.get(stage.name)
        left *= 1.0 if setting is None else stage.effect(setting, shape).work
    return left


class Planner(Protocol):
    """Chooses batches and settings. Called on the event loop's thread, so it must not block."""

    @property
    def stages(self) -> Sequence[Stage]:
        """The stages whose settings it chooses."""
        ...

    def plan(self, candidates: Sequence[Candidate], now: float) -> Plan:
        """Pick any of the candidates; there is at least one. now: `time.monotonic()`.

        A tenant that is passed over loses nothing: it still counts as the one that has received least.
        """
        ...

    def learn(self, plan: Plan, measured: Measured) -> None:
        """Take note of what a batch of this plan cost. Not called if all texts of the batch failed."""
        ...


class RoundRobin:
    """Picks the tenant that has received least, on a tie the one whose first text waits longest.

    Each stage runs under the last of its settings for the batch.
    """

    def __init__(self, stages: Sequence[Stage] = ()) -> None:
        self.stages = stages

    def plan(self, candidates: Sequence[Candidate], now: float) -> Plan:
        chosen = min(candidates)
        return Plan(chosen, {stage.name: stage.settings(chosen.key)[-1] for stage in self.stages})

    def learn(self, plan: Plan, measured: Measured) -> None:
        """Do nothing: the plan does not depend on measurements."""
