"""Asks and their results. A protocol decodes a call into asks, and encodes the results into its answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from hmi.core import ModelId
from hmi.engine import InferResult
from hmi.engine.request import Provenance

if TYPE_CHECKING:
    from hmi.model.tokenizer import Text


@dataclass(frozen=True)
class Input:
    """One text, pair of texts or list of words."""

    text: Text
    place: str
    """How the caller names the input, for example `inputs[3]`."""
    parts: tuple[str, ...]
    """The caller's name of each text in it. A list of words has one name, and a word's name is that with its
    index."""


class Inputs(Sized, Iterable[Input], Protocol):
    """The inputs of an ask. They may be made as they are read: a call with too many is refused before
    that."""


@dataclass(frozen=True)
class Ask:
    """Inputs for one model, and how to answer them."""

    model: ModelId
    inputs: Inputs
    """One at least."""
    model_place: str | None = None
    """The caller's name of the field that holds the model. None where the path names the model."""
    exact: bool = False
    """Compute the lower layers in full, without the PLOT."""
    scores: bool = False
    """Give the probability of every label."""
    provenance: bool = False
    """Say what made the answer."""
    deadline_ms: float | None = None
    """Milliseconds from the call's arrival on, after which the work is dropped. None: no deadline."""


@dataclass(frozen=True)
class AskResult:
    """The answer to one ask."""

    model: ModelId
    version: int
    outputs: Sequence[InferResult]
    """One for each input, in their order."""
    timing: Mapping[str, float]
    """Milliseconds. `total_ms` is the time since the call arrived; of each stage, the input that it took
    longest."""
    provenance: Provenance | None
    """None where the ask did not want it."""
