"""The body and the answers of Hugging Face's inference API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, RootModel, Tag

from hmi.api.protocols.forms import AskedForm
from hmi.api.protocols.inputs import Text
from hmi.api.protocols.results import Transform
from hmi.api.protocols.tei.schemas import Direction
from hmi.api.schemas.generate import MaxTokens, Penalty, RepetitionPenalty, Seed, Stops, TopK, TopP
from hmi.api.schemas.shared import Answer, Request
from hmi.model.tenant.answer import Aggregation

NEW_TOKENS = 100
"""The client's default of `max_new_tokens`."""
HubFinish = Literal["length", "eos_token", "stop_sequence"]


class TextPair(Request):
    """A text, or a pair of texts, as transformers' pipelines take it."""

    text: Text
    text_pair: Text | None = None


class Comparison(Request):
    """Sentences to be compared with one sentence."""

    source_sentence: Text
    sentences: Annotated[list[Text], Field(min_length=1, fail_fast=True)]


_FORM = (
    'must be a text, {"text": …, "text_pair": …}, a list of these, or {"source_sentence": …, '
    '"sentences": […]}'
)


def _item_kind(value: Any) -> str | None:
    if isinstance(value, str):
        return "<text>"
    return "<pair>" if isinstance(value, dict | TextPair) else None


Item = Annotated[
    Annotated[Text, Tag("<text>")] | Annotated[TextPair, Tag("<pair>")],
    Discriminator(_item_kind, "input_form", 'must be a text or {"text": …, "text_pair": …}'),
]


def _inputs_kind(value: Any) -> str | None:
    if isinstance(value, list):
        return "<many>"
    if isinstance(value, Comparison) or (isinstance(value, dict) and "source_sentence" in value):
        return "<comparison>"
    return _item_kind(value)


class HubParameters(Request):
    """The parameters of all tasks. One that the model's task does not have is refused."""

    top_k: TopK | None = Field(
        default=None, ge=1, description="Labels: give the best ones only. Texts: draw among so many tokens."
    )
    function_to_apply: Transform | None = Field(
        default=None, description="Labels: what makes scores of the head's outputs. Default: as trained."
    )
    aggregation_strategy: Aggregation | None = Field(
        default=None, description="Entities: how words with tags become entities. Default: simple."
    )
    ignore_labels: list[str] | None = Field(
        default=None, max_length=1000, description="Entities: labels to leave out, besides O."
    )
    normalize: bool | None = Field(
        default=None, description="Embeddings: scale them to length 1. Default: as the root's authors do."
    )
    truncate: bool | None = Field(
        default=None, description="Embeddings: false refuses a text that is too long; else its end is cut."
    )
    truncation_direction: Direction | None = Field(default=None, description="Embeddings: only Right.")
    max_new_tokens: MaxTokens | None = Field(
        default=None, description=f"Texts: the most tokens. Default: {NEW_TOKENS}."
    )
    do_sample: bool | None = Field(
        default=None,
        description="Texts: draw tokens. They are drawn, too, if temperature (not 1), top_k or top_p is "
        "given; else the likeliest is taken.",
    )
    temperature: float | None = Field(default=None, gt=0, le=100, description="Texts. Default: 1.")
    top_p: TopP | None = Field(default=None, description="Texts.")
    repetition_penalty: RepetitionPenalty | None = Field(default=None, description="Texts.")
    frequency_penalty: Penalty | None = Field(default=None, description="Texts.")
    seed: Seed | None = Field(default=None, description="Texts.")
    stop: Stops | None = Field(default=None, description="Texts: they end before the first of these.")
    return_full_text: bool | None = Field(default=None, description="Texts: put the prompt before the text.")
    details: bool | None = Field(default=None, description="Texts: tell the tokens, and why the text ended.")
    best_of: Literal[1] | None = Field(default=None, description="Texts: only 1.")
    adapter_id: Literal[""] | None = Field(default=None, description="Refused: the model has its own module.")
    decoder_input_details: Literal[False] | None = Field(default=None, description="Texts: only false.")
    watermark: Literal[False] | None = Field(default=None, description="Texts: only false.")
    top_n_tokens: Literal[0] | None = Field(default=None, description="Texts: only 0.")
    typical_p: Literal[1] | None = Field(default=None, description="Texts: only 1.")
    grammar: AskedForm | None = Field(default=None, description="Texts: see `form` of POST /generate.")
    stride: int | None = Field(default=None, description="Refused: long texts are read in fixed windows.")
    prompt_name: str | None = Field(default=None, description="Refused: models have no prompts.")
    candidate_labels: list[str] | str | None = Field(
        default=None, description="Refused: a model knows the labels of its training rows only."
    )
    multi_label: bool | None = Field(default=None, description="Refused, with `candidate_labels`.")
    hypothesis_template: str | None = Field(default=None, description="Refused, with `candidate_labels`.")


class HubOptions(Request):
    """Options of the hosted API, which change nothing here."""

    use_cache: bool | None = None
    wait_for_model: bool | None = None


BESIDE = ("normalize", "truncate", "truncation_direction", "prompt_name")
"""Parameters that may stand beside `inputs`, too."""


class HubBody(Request):
    """A request to a model, for the task that the model was trained for."""

    inputs: Annotated[
        Annotated[str, Tag("<text>")]
        | Annotated[TextPair, Tag("<pair>")]
        | Annotated[Annotated[list[Item], Field(min_length=1, fail_fast=True)], Tag("<many>")]
        | Annotated[Comparison, Tag("<comparison>")],
        Discriminator(_inputs_kind, "input_form", _FORM),
    ]
    parameters: HubParameters = HubParameters()
    options: HubOptions | None = None
    stream: bool | None = Field(default=None, description="Texts: answer with server-sent events.")
    normalize: bool | None = Field(default=None, description="The same as in `parameters`.")
    truncate: bool | None = Field(default=None, description="The same as in `parameters`.")
    truncation_direction: Direction | None = Field(default=None, description="The same as in `parameters`.")
    prompt_name: str | None = Field(default=None, description="The same as in `parameters`.")

    @property
    def given(self) -> HubParameters:
        """The parameters, wherever they were given: the client sends those of embeddings beside `inputs`."""
        beside = self.model_dump(include=set(BESIDE), exclude_none=True)
        return self.parameters.model_copy(update=beside) if beside else self.parameters


class Label(Answer):
    label: str = Field(description="`value` for a model whose answer is a number, which `score` then is.")
    score: float


class HubEntity(Answer):
    """A part of the text with a label: a group of words, or with the aggregation `none` one word."""

    entity_group: str | None = None
    entity: str | None = None
    score: float
    word: str
    start: int = Field(description="In Unicode code points of the input.")
    end: int = Field(description="The index after its last character.")


class HubToken(Answer):
    """A token that was written."""

    id: int = Field(description="In the root's vocabulary.")
    text: str = Field(description="In a stream, the text that is new with this token.")
    logprob: float
    special: bool


class GenerationDetails(Answer):
    finish_reason: HubFinish
    generated_tokens: int
    input_length: int
    seed: int | None
    prefill: list[HubToken] = Field(description="Always empty.")
    tokens: list[HubToken]


class Generated(Answer):
    """A text that was written."""

    generated_text: str
    details: GenerationDetails | None = None


class HubAnswer(
    RootModel[
        list[list[Label]]
        | list[HubEntity]
        | list[list[HubEntity]]
        | list[list[float]]
        | list[float]
        | list[Generated]
    ]
):
    """An answer in the form that the model's task has on the hub. A text is a list of one.

    Classification gives a list of labels for each input, the best first. Tagging gives the entities of the
    text, or for a list of texts a list of each text's entities. An embedding model gives a vector for each
    input. A comparison of sentences gives a similarity for each of them.
    """


class HubError(Answer):
    """An error in the form of Hugging Face's inference API."""

    error: str
    error_type: str = Field(description="HMI's kind of the error, which clients may match on.")
