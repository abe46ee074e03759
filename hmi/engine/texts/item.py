"""Items: texts in the engine. Batches consist of their windows."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hmi.core import Objective
from hmi.engine.texts.request import TextRequest
from hmi.engine.texts.sink import Sink
from hmi.execution.batch import BatchKey
from hmi.stages.planning.group import Group, Member, Price

if TYPE_CHECKING:  # a scheduler asks little of a bundle, which holds all that computes
    from hmi.engine.admit.bundles import Bundle
    from hmi.model.text.batching import Encoded
    from hmi.model.text.splitting import SplitText
    from hmi.model.text.tokenizer import Text

Kind = tuple[BatchKey, bool]
"""A batch key, and whether its texts are in groups. Only texts of one kind share a batch."""
# The two costs below are fitted to the compiled executors: docs/design/0010-queue.md has the figures.
TEXT_WORK = 3.0
"""The fixed cost of a window: its look-up, its part of the answer."""
MODULE_WORK = 4.0
"""The cost of each module in a batch: its own products and its head."""
FULL = Objective()
"""The objective of texts that insist on the full model: no stage may change their answers."""
_ADDING = threading.Lock()
"""One lock for all items, since it is held only for an instant."""


@dataclass(eq=False)
class Times:
    """The times of one batch. Its compute thread writes them while the batch runs."""

    begun: float
    """The `time.monotonic()` at which the batch began."""
    retrieve_s: float = 0.0
    compute_s: float = 0.0
    """Seconds of upper layers, heads and answers so far."""
    waited_s: float = 0.0
    """The part of `compute_s` in which the thread slept until a device was done."""


@dataclass
class Partial:
    """Results of those windows of a text that have run."""

    outputs: dict[int, Tensor] = field(default_factory=dict)
    """The head's output, by window."""
    hits: Counter[str] = field(default_factory=Counter)
    """Tokens, by what answered their look-up."""
    orders: dict[int, NDArray[np.int8]] = field(default_factory=dict)
    """The order of the n-gram that answered each token, by window. Only of a request that wants its words."""
    layers: int = 0
    """The largest number of upper layers that a window went through."""
    stages: dict[str, str] = field(default_factory=dict)
    """The setting of each stage that concerned a window."""
    planner: str | None = None
    """The planner's reason for the last batch that a window was in; None: it gave none."""
    confidence: float | None = None
    """Of the ramp that answered the text; None if none did."""
    similarities: dict[int, float] = field(default_factory=dict)
    """The similarity of each window to the model's own texts, if the model has a threshold for this."""
    aligned: dict[int, Tensor] = field(default_factory=dict)
    """The alignment of each window of a pair of texts (`hmi.model.tenant.alignment`)."""
    batches: set[Times] = field(default_factory=set)
    """The times of each batch that a window was in."""


@dataclass
class Item:
    """A text that waits for its answer. Its windows may run in several batches."""

    request: TextRequest
    bundle: Bundle
    windows: list[Encoded]
    """The tokenised text: one window, or several if it is long."""
    sink: Sink
    split: SplitText | None = None
    """The words of a text that the caller has not split, for a tagging model."""
    queued: float = field(default_factory=time.monotonic)
    cut: int = 0
    """The number of windows that are in batches already."""
    partial: Partial = field(default_factory=Partial)
    counted: bool = False
    """True once its tenant's usage has it as answered."""
    price: Price | None = None
    """The price of a text with a deadline or a utility, if the planner forms groups; None: ordinary texts."""
    group: Group | None = None
    """The last group that a text with a price was in."""
    member: Member | None = None
    """The member that stands for the text in its group. None once it does not wait any more."""

    @property
    def read(self) -> Text:
        """The text as the model reads it: for a tagging model its words."""
        return self.request.text if self.split is None else self.split.words

    @property
    def words(self) -> int:
        """The number of words of a text to tag, otherwise 0."""
        return len(self.read) if isinstance(self.read, list) else 0

    @property
    def key(self) -> BatchKey:
        return self.bundle.key

    @property
    def kind(self) -> Kind:
        return self.bundle.key, self.price is not None

    @property
    def tenant(self) -> str:
        return self.request.model.tenant

    @property
    def objective(self) -> Objective:
        """The bounds that stages keep for the text: none may change its answer if its request insists."""
        if self.request.early:
            return self.bundle.objective
        return self.bundle.only_tokens if self.request.adapt else FULL

    @property
    def tokens(self) -> int:
        return sum(map(len, self.windows))

    @cached_property
    def nonce(self) -> str:
        """See `hmi.stages.base.Text`."""
        return os.urandom(16).hex()

    @property
    def timing(self) -> dict[str, float]:
        """The answer's times in milliseconds, once all windows have run."""
        batches = self.partial.batches
        seconds = {
            "queue_ms": min(times.begun for times in batches) - self.queued,
            "retrieve_ms": sum(times.retrieve_s for times in batches),
            "compute_ms": sum(times.compute_s for times in batches),
        }
        return {name: round(s * 1e3, 3) for name, s in seconds.items()}

    def add(
        self,
        index: int,
        output: Tensor,
        hits: Mapping[str, int],
        layers: int,
        stages: Mapping[str, str],
        times: Times,
        confidence: float | None = None,
    ) -> bool:
        """Store a window's results. Returns whether all windows of the text have run.

        Thread-safe, since two streams may finish windows at once. A window that ran again counts once.
        """
        with _ADDING:
            mine = self.partial
            if index not in mine.outputs:
                mine.hits.update(hits)
                mine.layers = max(mine.layers, layers)
                mine.stages.update(stages)
                mine.batches.add(times)
                mine.confidence = confidence
            mine.outputs[index] = output
            return len(mine.outputs) == len(self.windows)


@dataclass(frozen=True)
class Piece:
    """One window of an item, the unit that batches consist of."""

    item: Item
    index: int

    @property
    def bundle(self) -> Bundle:
        return self.item.bundle

    @property
    def window(self) -> Encoded:
        return self.item.windows[self.index]

    @cached_property
    def work(self) -> float:
        return work_of(len(self.window), self.item.bundle.root.dim)


def work_of(tokens: int, dim: int) -> float:
    """Return the work of one window, without its module's. The unit is one token of a very short window.

    A layer's linear maps take 24 · dim² operations a token, its attention 4 · dim for each pair of tokens.
    """
    return TEXT_WORK + tokens * (1 + tokens / (6 * dim))


def work_in(pieces: Sequence[Piece]) -> float:
    """The work of a batch of these windows, without its fixed cost."""
    return sum(piece.work for piece in pieces) + MODULE_WORK * len(set(artefacts_of(pieces)))


def artefacts_of(pieces: Sequence[Piece]) -> list[str]:
    """The names of the modules that answer these windows, in their order."""
    return [piece.bundle.version.artefact for piece in pieces]
