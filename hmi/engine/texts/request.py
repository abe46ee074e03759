"""The engine's requests and answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, get_args

from hmi.core import ModelId
from hmi.model.tenant.answer import Aggregation, InputAnswer

if TYPE_CHECKING:
    from hmi.model.text.tokenizer import Text

Priority = Literal["high", "normal", "low"]
PRIORITIES: tuple[Priority, ...] = get_args(Priority)
"""The most urgent first."""
Level = Literal["small", "large"]
"""Of a cascade."""


@dataclass(frozen=True)
class TextRequest:
    """One text, pair or list of words for one model. `deadline` is a `time.monotonic()` time, None = none."""

    model: ModelId
    text: Text
    exact: bool = False
    scores: bool = False
    calibrated: bool = False
    """True if probabilities are to be calibrated, by the version's temperature if it has one."""
    raw: bool = False
    """True if the head's outputs are wanted, too (`InputAnswer.outputs`)."""
    normalise: bool | None = None
    """Embeddings are scaled to length 1 if true, and left as they are if false. With None the root's
    convention holds.
    """
    provenance: bool = False
    words: bool = False
    """True if the answer is to say which n-grams answered each word."""
    aggregation: Aggregation = "simple"
    """The rule by which tags become entities, for texts that the caller has not split into words."""
    deadline: float | None = None
    priority: Priority = "normal"
    """The text's order among its own tenant's waiting texts. Other tenants' turns do not depend on it."""
    utility: float = 1.0
    """The value of an answer within the deadline, in (0, 1]. Under load the planner prefers higher sums."""
    early: bool = True
    """True if early exits and cascades may answer. They do so only as the tenant's objective lets them."""
    adapt: bool = False
    """True if token adaptation may act although `early` is False: for the large level of a cascade."""
    place: str = "inputs"
    """The name of this text in the call, the `field` of errors about it."""
    model_place: str | None = None
    """The field of the call that names the model; None if no field does."""
    id: str = ""
    """The same id makes the same draws (`hmi.stages.draw`). Texts of a call have different ones. Without one
    they are drawn at random."""
    beside: bool = False
    """True if it may run beside a batch of its own tenant's: a text for the small level of a cascade, which
    would otherwise wait for a batch of the large one, and then for another."""
    ask: int = 0
    """The index of the call's ask that the text belongs to. Usage counts each ask as one request."""

    @property
    def has_aim(self) -> bool:
        """True if the text has a deadline or a utility below 1, by which the planner may weigh it against
        others (`hmi.stages.planning`)."""
        return self.deadline is not None or self.utility != 1.0

    @property
    def characters(self) -> int:
        """The length of the text: of all words, or of both texts of a pair."""
        return len(self.text) if isinstance(self.text, str) else sum(map(len, self.text))


@dataclass(frozen=True)
class AnswerVersions:
    """The versions that answered. All inputs of an ask have the same."""

    model: int
    plot: str
    domain: str
    root: str


@dataclass(frozen=True)
class AnswerProvenance:
    """The origin of one answer, or of one model's answers in a call."""

    plot: Mapping[str, int]
    """Tokens by what answered their look-up: trigram, bigram, unigram, …, miss, or `computed` if exact."""
    layers: int
    """Upper layers that ran; the largest number over all windows and answers."""
    exact: bool
    versions: AnswerVersions
    stages: Mapping[str, str] = field(default_factory=dict)
    """The setting of each execution stage that was on for the text."""
    confidence: float | None = None
    """Of a text that left early: that of the ramp that answered it. The least over all answers."""
    level: Level | None = None
    """Of a cascade: the level that answered; `large` if it answered one of several texts. None without a
    cascade."""

    planner: str | None = None
    """The planner's reason for the batch that the text ran in. None: turns alone decided."""

    @classmethod
    def together(cls, parts: Sequence[AnswerProvenance]) -> AnswerProvenance:
        """Sum the counts of at least one provenance. All must have the same model and versions, except that
        the levels of a cascade have their own: the large level's are given if it answered one of them."""
        plot: Counter[str] = Counter()
        stages: dict[str, str] = {}
        for part in parts:
            plot.update(part.plot)
            stages.update(part.stages)
        levels = [p.level for p in parts if p.level is not None]
        first = next((part for part in parts if part.level != "small"), parts[0])
        return replace(
            first,
            plot=dict(plot),
            layers=max(part.layers for part in parts),
            stages=stages,
            confidence=min((p.confidence for p in parts if p.confidence is not None), default=None),
            level="large" if "large" in levels else next(iter(levels), None),
            planner="; ".join(dict.fromkeys(p.planner for p in parts if p.planner is not None)) or None,
        )


@dataclass(frozen=True)
class Word:
    """A word of the caller's text, with the n-grams that answered it.

    Words of a text are the tokenizer's, for which punctuation marks are words of their own. Those of a
    tagging model are the words that it tags.
    """

    text: str
    start: int | None
    """The word's beginning in the caller's text, in Unicode code points; None if the caller gave a list of
    words.
    """
    end: int | None
    """The first code point after it."""
    orders: tuple[str, ...]
    """The n-gram that answered each of the word's tokens: trigram, bigram, unigram, …, miss, or `computed` if
    exact. It is empty if the model did not read the word.
    """
    pair: bool = False
    """True if it stands in the second text of a pair."""


@dataclass(frozen=True, kw_only=True)
class TextResult(InputAnswer):
    """One answer, in the form of its model's task, with the version that made it."""

    model: ModelId
    version: int
    truncated: bool = False
    tokens: int = 0
    """The tokens that were read, special tokens included; over all windows of a long text."""
    provenance: AnswerProvenance | None = None
    words: list[Word] | None = None
    """The words that were read, in their order. None unless the request wants them."""
    timing: dict[str, float] = field(default_factory=dict)
    """queue_ms, retrieve_ms and compute_ms. The last two are sums over the batches that the text was in."""
