"""Asks and their results. A protocol decodes a call to asks, and encodes their results to its answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from hmi.core import ModelId
from hmi.engine import TextResult
from hmi.engine.texts.request import AnswerProvenance, Priority
from hmi.model.tenant.answer import Aggregation

if TYPE_CHECKING:
    from hmi.model.text.tokenizer import Text


@dataclass(frozen=True)
class Input:
    """One text, pair of texts or list of words."""

    text: Text
    place: str
    """How the caller names the input, for example `inputs[3]`."""
    parts: tuple[str, ...]
    """The caller's name of each text in the input, for example `inputs[3].text`. A list of words has one
    name; the name of a word adds its index."""


class Inputs(Sized, Iterable[Input], Protocol):
    """The inputs of an ask. They may be created only when they are iterated.

    A call with too many inputs is refused by their number, before any of them is created.
    """


@dataclass(frozen=True)
class Ask:
    """Inputs for one model, and how to answer them."""

    model: ModelId
    inputs: Inputs
    """At least one."""
    model_place: str | None = None
    """The caller's name of the field that holds the model; None if the path names the model."""
    exact: bool = False
    """Compute the lower layers in full, without the PLOT."""
    scores: bool = False
    """Return the probability of every label."""
    raw: bool = False
    """Return the head's outputs, too (`InputAnswer.outputs`)."""
    normalise: bool | None = None
    """Embeddings are scaled to length 1 if true, and left as they are if false. With None the root's
    convention holds.
    """
    provenance: bool = False
    """Return the answer's provenance."""
    words: bool = False
    """Return the n-grams that answered each word."""
    calibrated: bool = False
    """Return calibrated probabilities."""
    aggregation: Aggregation = "simple"
    """The rule by which tags become entities, for texts that the caller has not split into words."""
    early: bool = True
    """True if early exits and cascades may answer. They do so only as the model's objective lets them."""
    deadline_ms: float | None = None
    """The work is dropped this many milliseconds after the call's arrival; None: no deadline."""
    utility: float = 1.0
    """The value of an answer within the deadline, in (0, 1]."""
    priority: Priority = "normal"
    """The texts' order among the tenant's own waiting texts."""
    place: int | None = None
    """The ask's index in a call of a list of asks; None for a call of one ask."""

    def id_in(self, call: str) -> str:
        """The id of the ask, given its call's. With `text_id` it names one of the ask's texts."""
        return call if self.place is None else f"{call}.{self.place}"


@dataclass(frozen=True)
class AskResult:
    """The answer to one ask."""

    model: ModelId
    version: int
    outputs: Sequence[TextResult]
    """One for each input, in their order."""
    timing: Mapping[str, float]
    """Milliseconds by stage, each of the input that took longest. `total_ms` is the time since the call
    arrived."""
    provenance: AnswerProvenance | None
    """None unless the ask wants it."""
    id: str = ""
    """The ask's id, by which feedback names it (`Ask.id_in`)."""


def text_id(ask: str, index: int) -> str:
    """The id of one text (`TextRequest.id`), given its ask's and its index among the ask's inputs."""
    return f"{ask}/{index}"
