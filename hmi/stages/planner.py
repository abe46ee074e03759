"""The planner: of the queue's candidates it picks the next to run, with its settings. Then the queue cuts the
batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hmi.execution.batch import BatchKey
from hmi.stages.base import OFF, Setting, Shape, Stage


@dataclass(frozen=True, order=True)
class Candidate:
    """Waiting texts of one batch key, described by the tenant that is next among them."""

    given_s: float
    """Compute seconds that the tenant was given."""
    since: float
    """`time.monotonic()` since when the tenant's first text waits."""
    tenant: str
    key: BatchKey
    layers: int
    """Upper layers of the key's root."""


@dataclass(frozen=True)
class Plan:
    """What is to run next."""

    candidate: Candidate
    settings: Mapping[str, Setting] = field(default_factory=dict)
    """By stage; a stage that is not named is off."""

    @property
    def on(self) -> dict[str, Setting]:
        """The settings of the stages that are not off."""
        return {name: setting for name, setting in self.settings.items() if setting != OFF}


@dataclass(frozen=True)
class Measured:
    """What a batch took."""

    texts: int
    tokens: int
    cpu_s: float
    """Of the one thread that ran it."""


def share_left(plan: Plan, stages: Sequence[Stage]) -> float:
    """Of the layers' work, what the stages that are on leave, as far as each expects it."""
    shape, share = Shape(plan.candidate.key, plan.candidate.layers), 1.0
    for stage in stages:
        setting = plan.on.get(stage.name)
        share *= 1.0 if setting is None else stage.effect(setting, shape).work
    return share


class Planner(Protocol):
    """Called on the event loop's thread, before every cut and after every batch: it must not block."""

    @property
    def stages(self) -> Sequence[Stage]:
        """Those that it chooses settings of."""
        ...

    def plan(self, candidates: Sequence[Candidate], now: float) -> Plan:
        """Pick one of the candidates, of which there is one at least. now: `time.monotonic()`."""
        ...

    def learn(self, plan: Plan, measured: Measured) -> None:
        """A batch ran as planned."""
        ...


class RoundRobin:
    """The tenant that was given least goes first, of its texts those that wait longest; every stage is
    off."""

    stages: Sequence[Stage] = ()

    def plan(self, candidates: Sequence[Candidate], now: float) -> Plan:
        return Plan(min(candidates))

    def learn(self, plan: Plan, measured: Measured) -> None:
        """Nothing depends on what was measured."""
