"""The interface of a stage: its settings, the expected effect of each, and its hooks for one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from torch import Tensor

from hmi.core import Cascade, ModelId, ModelVersion, Objective
from hmi.execution.batch import BatchKey, Rows
from hmi.model.tenant.calibration import Floats

if TYPE_CHECKING:  # the planner and the queue know stages, and need neither layers nor heads
    from hmi.execution.base import Hook
    from hmi.model.tasks import TaskKind


@dataclass(frozen=True)
class Setting:
    """One way to run a stage. A stage may add fields in a subclass."""

    name: str
    """The name of the setting in provenance and metrics."""


OFF: Final = Setting("off")
"""Every stage's first setting. Answers are bit-identical to those of a server without the stage."""


@dataclass(frozen=True)
class Shape:
    """The properties of a batch that are known before it is cut."""

    key: BatchKey
    layers: int
    """The number of upper layers of the root."""


@dataclass(frozen=True)
class Effect:
    """The expected effect of a setting on a batch."""

    rows: tuple[float, ...]
    """[layers]: the fraction of the batch's rows that enter each layer."""
    loss: float = 0.0
    """An upper bound of the fraction of answers that are expected to differ from those under OFF.

    Planners should weigh it. The engine does not read it."""
    stall_s: float = 0.0
    """Seconds that the batch waits for the stage. Planners should weigh it. The engine does not read it."""

    @property
    def work(self) -> float:
        """The fraction of the layers' work that is left."""
        return sum(self.rows) / len(self.rows)


@dataclass(frozen=True)
class Text:
    """A stage's view of one text of a batch."""

    model: ModelId
    version: ModelVersion
    objective: Objective
    cascade: Cascade | None
    task: TaskKind
    id: str
    """The id of its request, which its sender may choose. Late labels name it, and a cascade dispatches by it
    (`hmi.stages.draw`)."""
    nonce: str
    """A random number of the text that no sender knows, for draws that decide about audits. A batch that runs
    again has the same ones."""
    tokens: int
    whole: bool
    """True if the text has one window. The answer of a text with several is made of all of them."""
    merged: Callable[[Tensor], Tensor]
    """The task's `merge` of a whole text's output."""
    early: bool = True
    """False if the request insists on the full model's answer."""
    words: Sequence[int] = ()
    """[tokens]: the index of each token's word within its segment; -1 for special tokens."""
    segments: Sequence[int] = ()
    """[tokens]: 0 in the first text, 1 in the second."""


Stretch = tuple[int, int]
"""Neighbouring tokens of a text: the first one, and their number."""


def _unknown(layer: int, rows: Rows, texts: Sequence[int]) -> list[Floats]:
    raise RuntimeError("attention of a batch that was made without it")


def _no_prompts(text: int, count: int) -> Tensor | None:
    return None


def _no_stretches(text: int) -> Sequence[Stretch]:
    raise RuntimeError("stretches of a batch that was made without them")


@dataclass(frozen=True)
class StageBatch:
    """A stage's view of the batch that it creates hooks for."""

    key: BatchKey
    layers: int
    texts: Sequence[Text]
    """Each is made when it is first read."""
    ramp: Callable[[int, Rows, Sequence[int]], list[Tensor | None]]
    """ramp(site, rows, texts): the outputs of the texts' ramps before the layer `site`, in the form of a
    head's outputs. `rows` are those that enter the layer; `texts`, ascending, are among theirs. None for a
    text without such a ramp, and for one whose output is not finite. If rows are merged, a ramp reads the row
    that stands for each token."""
    objectives: Sequence[Objective]
    """[texts]: the objective of each. To look at them all costs less than to look at the texts."""
    attention: Callable[[int, Rows, Sequence[int]], list[Floats]] = _unknown
    """attention(layer, rows, texts): the attention [rows] that each row of a text receives in a layer from
    the text's first row. `rows` are those that enter the layer; `texts` are among theirs."""
    versions: Sequence[tuple[ModelId, ModelVersion, Cascade | None]] = ()
    """[texts]: the model, version and cascade of each, which cost as little as objectives; (): not given."""
    prompts: Callable[[int, int], Tensor | None] = _no_prompts
    """prompts(text, count): the set of `count` prompts of a text's model, fp32 [layers, count, dim] in host
    memory. None if the model has no such set, or if the text with it would be longer than the root reads."""
    tokens: Sequence[int] = ()
    """[texts]: the number of tokens of each, which costs as little; (): not given."""
    stretches: Callable[[int], Sequence[Stretch]] = _no_stretches
    """stretches(text): those tokens of a text that are not special, divided where special ones lie between
    them."""


class Stage(Protocol):
    """One way to spend less on batches. A stage keeps no state of a batch: its hooks hold what they need."""

    @property
    def name(self) -> str: ...

    def settings(self, key: BatchKey) -> Sequence[Setting]:
        """Return the settings for batches with this key. The first is OFF.

        Planners must choose among them. The engine does not call it.
        """
        ...

    def effect(self, setting: Setting, shape: Shape) -> Effect:
        """Return the expected effect of a setting other than OFF. Called for each plan that uses it."""
        ...

    def hooks(self, setting: Setting, batch: StageBatch) -> Sequence[Hook]:
        """Return the hooks of one batch under a setting other than OFF; none if no text is concerned.

        Called on the batch's compute thread, maybe for several batches at once.
        """
        ...
