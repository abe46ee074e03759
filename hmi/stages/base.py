"""The interface of a stage: its settings, the expected effect of each, and its hooks for one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from hmi.core import ModelId
from hmi.execution.base import Hook
from hmi.execution.batch import BatchKey


@dataclass(frozen=True)
class Setting:
    """One way to run a stage; a stage adds fields in a class of its own. Provenance and metrics say the
    name."""

    name: str


OFF: Final = Setting("off")
"""Every stage's first setting: bit-identical to a server without the stage."""


@dataclass(frozen=True)
class Shape:
    """What is known of a batch before it is cut."""

    key: BatchKey
    layers: int
    """Upper layers of the root."""


@dataclass(frozen=True)
class Effect:
    """What a setting is expected to do to a batch."""

    rows: tuple[float, ...]
    """[layers]: the share of the batch's rows that enter each layer."""
    loss: float = 0.0
    """At most so many answers in one are expected to differ from those of `off`."""
    stall_s: float = 0.0
    """Seconds that the batch waits for the stage."""

    @property
    def work(self) -> float:
        """The share of the layers' work that is left."""
        return sum(self.rows) / len(self.rows)


@dataclass(frozen=True)
class Batch:
    """The batch for which a stage makes hooks."""

    key: BatchKey
    lengths: Sequence[int]
    """Tokens of each text."""
    models: Sequence[ModelId]
    """Whose model answers each text."""


class Stage(Protocol):
    """One way to spend less. A stage keeps nothing of a batch: what its hooks need they hold themselves."""

    @property
    def name(self) -> str: ...

    def settings(self, key: BatchKey) -> Sequence[Setting]:
        """What may be chosen for such batches; the first is OFF."""
        ...

    def effect(self, setting: Setting, shape: Shape) -> Effect:
        """What a setting other than OFF is expected to do."""
        ...

    def hooks(self, setting: Setting, batch: Batch) -> Sequence[Hook]:
        """The hooks of one batch under a setting other than OFF."""
        ...
