"""The schemas of calls that let a model write text."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Discriminator, Field, StringConstraints, Tag, model_validator

from hmi.api.schemas.shared import Answer, DeadlineMs, Request
from hmi.core import ROLE_PATTERN
from hmi.engine.writing.request import DEFAULT_MOST, Finish, WrittenText
from hmi.model.text.form import Form
from hmi.model.text.sampling import MOST_LOGPROBS

MaxTokens = Annotated[int, Field(ge=1, le=1_000_000)]
Temperature = Annotated[float, Field(ge=0, le=100)]
TopK = Annotated[int, Field(ge=0, le=2**31)]
TopP = Annotated[float, Field(gt=0, le=1)]
MinP = Annotated[float, Field(ge=0, le=1)]
RepetitionPenalty = Annotated[float, Field(ge=1e-3, le=1e3)]
Penalty = Annotated[float, Field(ge=-100, le=100)]
Seed = Annotated[int, Field(ge=0, lt=2**64)]
Logprobs = Annotated[int, Field(ge=0, le=MOST_LOGPROBS)]
MOST_STOPS = 16
Stop = Annotated[str, StringConstraints(min_length=1, max_length=200)]


def _stop_kind(value: Any) -> str | None:
    kinds: dict[type, str] = {str: "<one>", list: "<several>"}
    return kinds.get(type(value))


Stops = Annotated[
    Annotated[Stop, Tag("<one>")]
    | Annotated[Annotated[list[Stop], Field(max_length=MOST_STOPS)], Tag("<several>")],
    Discriminator(_stop_kind, "stop_form", "is no stop string: give a text, or a list of texts"),
]


class Message(Request):
    """A message of a chat."""

    role: Annotated[str, StringConstraints(pattern=f"^{ROLE_PATTERN}$")] = Field(
        description="Who says it, as the root's chat template knows it: system, user, assistant."
    )
    content: str


class FormBody(Request):
    """The form that the text keeps: one of json_schema, json, choices, regex and grammar."""

    json_schema: dict[str, Any] | None = Field(
        default=None, description="The text is JSON, on one line, valid by this schema."
    )
    json_object: bool = Field(default=False, alias="json", description="The text is a JSON object.")
    choices: list[str] | None = Field(default=None, description="The text is one of these.")
    regex: str | None = Field(default=None, description="The whole text matches it, in Rust's syntax.")
    grammar: str | None = Field(
        default=None, description="The text is a sentence of this grammar, in Lark's syntax."
    )

    probabilities: bool = Field(
        default=False,
        description="With `choices`: the text is the likeliest whole choice, and `choices` of the answer has "
        "the probability of each.",
    )

    def form(self, place: str = "form") -> Form:
        """The form. place: the caller's name of the field that holds it. Raises InvalidInput."""
        choices = None if self.choices is None else tuple(self.choices)
        return Form(
            self.json_schema, self.json_object, choices, self.regex, self.grammar, self.probabilities, place
        )


class GenerateBody(Request):
    """A prompt or a chat, and how the text that follows it is chosen."""

    prompt: str | None = Field(default=None, description="The text continues it. Give this or `messages`.")
    messages: list[Message] | None = Field(
        default=None, min_length=1, max_length=1000, description="A chat; the text is the next message."
    )
    max_tokens: MaxTokens | None = Field(
        default=None,
        description=f"The most tokens to write. Null: {DEFAULT_MOST}, or what the context has room for.",
    )
    temperature: Temperature = Field(
        default=0.0, description="0: the likeliest token. Else scores are divided by it."
    )
    top_k: TopK = Field(default=0, description="Choose among this many of the best; 0: all.")
    top_p: TopP = Field(default=1.0, description="Choose among the fewest best tokens of this probability.")
    min_p: MinP = Field(
        default=0.0, description="Choose among tokens of at least this share of the best probability."
    )
    repetition_penalty: RepetitionPenalty = Field(
        default=1.0, description="Above 1: tokens of prompt and text become less likely."
    )
    presence_penalty: Penalty = Field(
        default=0.0, description="Above 0: tokens of the text become less likely."
    )
    frequency_penalty: Penalty = Field(
        default=0.0, description="The same, for each time that the text has the token."
    )
    seed: Seed | None = Field(
        default=None, description="The same seed and version give the same text. Null: drawn for this call."
    )
    stop: Stops = Field(default_factory=list, description="The text ends before the first of these.")
    form: FormBody | None = Field(
        default=None, description="What the text must keep. A text that ends before it does so is an error."
    )
    logprobs: Logprobs | None = Field(
        default=None, description="Return each token's log-probability, and those of this many best tokens."
    )
    stream: bool = Field(
        default=False,
        description="Answer with server-sent events: `text` as it comes, then `end`, or `error`.",
    )
    deadline_ms: DeadlineMs | None = Field(
        default=None, description="After this time the answer is 504 and the work is dropped."
    )

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("needs prompt or messages: give one of them")
        return self


class TopToken(Answer):
    token: str
    logprob: float


class TokenLogprob(Answer):
    """A token, with natural log-probabilities of the model itself: without penalties or temperature."""

    token: str
    logprob: float
    top: list[TopToken]


class TextPiece(Answer):
    """The data of an event `text`."""

    text: str
    logprobs: list[TokenLogprob] | None = None


class WrittenTokens(Answer):
    prompt_tokens: int
    cached_tokens: int = Field(description="Tokens of the prompt that were known from an earlier text.")
    written_tokens: int


class ChoiceProbability(Answer):
    """A choice of a form, with the model's own probability of it among all choices."""

    text: str
    probability: float


def probabilities_of(written: WrittenText) -> list[ChoiceProbability] | None:
    """The probabilities that a text has, None if they were not asked for."""
    return [ChoiceProbability(text=text, probability=p) for text, p in written.choices] or None


class GenerateAnswer(Answer):
    """A whole text. It is the data of an event `end`, too."""

    id: str = Field(description="The answer's X-Request-Id.")
    model: str
    version: int
    text: str
    finish: Finish = Field(
        description="end: the model ended the text, or its form is complete. stop: a stop string came; it is "
        "left out. length: it has max_tokens."
    )
    seed: int | None = Field(description="The seed that was used; null at temperature 0.")
    usage: WrittenTokens
    logprobs: list[TokenLogprob] | None = None
    choices: list[ChoiceProbability] | None = Field(
        default=None, description="The form's choices, in their order, if it asks for `probabilities`."
    )
    plot: dict[str, int] = Field(
        description="Number of tokens by what their look-up found: trigram, bigram, unigram, …, miss."
    )
    timing: dict[str, float] = Field(description="Milliseconds by stage; names end in _ms.")
