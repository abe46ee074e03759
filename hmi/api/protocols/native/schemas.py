"""The schemas of native inference: its requests and answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from hmi.api.schemas.shared import Answer, DeadlineMs, ModelName, Request
from hmi.engine.texts.request import Level, Priority
from hmi.model.tenant.answer import Aggregation

Text = Annotated[str, Field(min_length=1)]
MAX_WORDS = 10_000
"""Most words in one input of `tokens`. The check stops at the first bad word: a list of all could be huge."""


class TextInput(Request):
    """A text, or a pair of texts for a model of the task `pair` (or of `regression` on pairs)."""

    text: Text
    text_pair: Text | None = None


class TokensInput(Request):
    """A text as a list of words, for a model of the task `tagging`."""

    tokens: list[Text] = Field(min_length=1, max_length=MAX_WORDS, fail_fast=True)


_AN_INPUT = 'an input is a text, {"text": …}, {"text": …, "text_pair": …} or {"tokens": [words]}'


def _item_kind(value: Any) -> str | None:
    if isinstance(value, str):
        return "<text>"
    if isinstance(value, TokensInput) or (isinstance(value, dict) and "tokens" in value):
        return "<tokens>"
    return "<object>" if isinstance(value, (dict, TextInput)) else None


def _inputs_kind(value: Any) -> str | None:
    if isinstance(value, str):
        return "<one>"
    return "<many>" if isinstance(value, list) else None


# Tags in <> name a choice of a union. Errors leave them out of the field's path: see `errors.pointer`.
Item = Annotated[
    Annotated[Text, Tag("<text>")]
    | Annotated[TextInput, Tag("<object>")]
    | Annotated[TokensInput, Tag("<tokens>")],
    Discriminator(_item_kind, "input_form", f"is no input: {_AN_INPUT}"),
]
Items = Annotated[list[Item], Field(min_length=1, fail_fast=True)]
Inputs = Annotated[
    Annotated[Text, Tag("<one>")] | Annotated[Items, Tag("<many>")],
    Discriminator(
        _inputs_kind, "inputs_form", f"must be a text or a list of inputs, also for one: [ … ]; {_AN_INPUT}"
    ),
]


class Parameters(Request):
    """The options of a call: how to answer, and what to return."""

    deadline_ms: DeadlineMs | None = Field(
        default=None, description="After this time the answer is 504 and the work is dropped."
    )
    utility: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="The value of an answer within its deadline, beside that of other calls. While not all "
        "deadlines can be met, texts of the highest total value are computed.",
    )
    priority: Priority = Field(
        default="normal",
        description="Its order among this tenant's own waiting calls. Other tenants' turns do not change.",
    )
    exact: bool = Field(default=False, description="Compute the lower layers in full, without the PLOT.")
    calibrated: bool = Field(
        default=False, description="Return calibrated probabilities. Labels, values and tags do not change."
    )
    aggregation: Aggregation = Field(
        default="simple",
        description="Tagging of texts: how words with tags become entities, as in transformers' pipelines. "
        "`none` gives each word with a tag other than O.",
    )
    early: bool = Field(
        default=True,
        description="False insists on the full model's answer where the model's objective lets texts leave "
        "early or a smaller model answer.",
    )
    return_: list[Literal["scores", "provenance", "words"]] = Field(
        default_factory=list, alias="return", description="What to add to the answer."
    )


class InferBody(Request):
    inputs: Inputs
    parameters: Parameters = Field(default_factory=Parameters)


class MixedItem(InferBody):
    """One request of a mixed call."""

    model: ModelName


MixedBody = Annotated[list[MixedItem], Field(min_length=1, max_length=1024)]


def count_members(body: InferBody | list[MixedItem]) -> int:
    """The number of members in all JSON objects that `body` was parsed from."""
    if isinstance(body, list):
        return sum(count_members(item) for item in body)
    items = [] if isinstance(body.inputs, str) else body.inputs
    inner = sum(len(item.model_fields_set) for item in items if not isinstance(item, str))
    return len(body.model_fields_set) + len(body.parameters.model_fields_set) + inner


class LabelScore(Answer):
    label: str
    score: float


class WordOrder(Answer):
    """A word, and the n-grams of the PLOT that answered it.

    Words of a text are the tokenizer's, for which punctuation marks are words of their own. Those of a
    tagging model are the words that it tags.
    """

    text: str
    start: int | None = Field(
        description="Where it begins in the text, in Unicode code points; null for an input of `tokens`."
    )
    end: int | None = Field(description="The first code point after it.")
    order: str | None = Field(
        description="The shortest n-gram that answered one of its tokens: trigram, bigram, unigram, …, miss; "
        "with `exact`: computed. Null: the model did not read the word."
    )
    orders: list[str] = Field(description="The n-gram that answered each of its tokens.")
    pair: bool = Field(default=False, description="Whether it stands in `text_pair`.")


class EntityOutput(Answer):
    """A part of the text with one label."""

    label: str
    start: int = Field(description="Index of its first character, in Unicode code points of the input.")
    end: int = Field(description="Index after its last character.")
    text: str = Field(description="The characters from `start` to `end` of the input.")
    score: float


class Output(Answer):
    """The answer to one input. Fields that the task does not have, or that were not asked for, are null."""

    label: str | None = None
    score: float | None = None
    scores: dict[str, float] | None = None
    labels: list[LabelScore] | None = Field(
        default=None, description="Multilabel only: the labels that apply, the likeliest first; may be empty."
    )
    value: float | None = Field(
        default=None, description="Regression only: in the units of the training rows."
    )
    tags: list[str] | None = Field(default=None, description="Tagging only: one tag for each word.")
    tag_scores: list[float] | None = None
    embedding: list[float] | None = None
    entities: list[EntityOutput] | None = Field(
        default=None,
        description="Tagging only, for an input that is a text: its entities, in order. Null for `tokens`.",
    )
    known: bool | None = Field(
        default=None,
        description="False if the model says that it does not know: the input is unlike its training rows. "
        "Null if the model has no threshold for this.",
    )
    truncated: bool = Field(
        default=False, description="The input was longer than what the model reads; the rest was ignored."
    )
    words: list[WordOrder] | None = Field(
        default=None, description="The words that were read; null unless `return` names `words`."
    )


class Versions(Answer):
    """The versions that answered. They are the same for all inputs of the answer."""

    model: int
    plot: str
    domain: str
    root: str = Field(description="The root's name and version.")


class InputProvenance(Answer):
    """The layers, level and stages that answered one input."""

    layers: int = Field(description="Number of upper layers that ran.")
    confidence: float | None = Field(
        description="Of an input that left early: that of the ramp that answered it, from 0 to 1."
    )
    level: Level | None = Field(description="Of a cascade: the level that answered.")
    stages: dict[str, str] = Field(
        default_factory=dict, description="The setting of each execution stage that concerned it."
    )
    planner: str | None = Field(
        default=None, description="The planner's reason for the batch that it ran in; null if turns decided."
    )


class Provenance(Answer):
    """The origin of an answer."""

    plot: dict[str, int] = Field(
        description="Number of tokens, over all inputs, by what their look-up found: trigram, bigram, "
        "unigram, …, miss; with `exact`: computed."
    )
    layers: int = Field(
        description="Number of upper layers that ran: the most of any input, since texts may leave early."
    )
    exact: bool
    versions: Versions
    stages: dict[str, str] = Field(
        default_factory=dict, description="The setting of each execution stage that was on."
    )
    confidence: float | None = Field(
        default=None,
        description="The least confidence of any input that left early, from 0 to 1; null if none did.",
    )
    level: Level | None = Field(
        default=None,
        description="Of a cascade: the level that answered; `large` if it answered any of the inputs.",
    )
    planner: str | None = Field(
        default=None, description="The planner's reasons for the batches of all inputs, each once."
    )
    inputs: list[InputProvenance] = Field(default_factory=list, description="The same for each input.")


class InferAnswer(Answer):
    id: str = Field(
        default="",
        description="Names the answer when labels are sent later (`POST …/feedback`). It is the answer's "
        "X-Request-Id, in an answer to `POST /infer` with `.` and the index in the body.",
    )
    model: str
    version: int
    outputs: list[Output]
    timing: dict[str, float] = Field(description="Milliseconds by stage; names end in _ms.")
    provenance: Provenance | None = None


MixedAnswer = list[InferAnswer]
