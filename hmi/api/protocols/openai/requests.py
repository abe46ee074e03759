"""The bodies of OpenAI's calls that let models write."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from hmi.api.protocols.forms import AskedForm
from hmi.api.protocols.openai.models import Id
from hmi.api.schemas.generate import (
    Logprobs,
    MaxTokens,
    MinP,
    Penalty,
    RepetitionPenalty,
    Stops,
    Temperature,
    TopK,
    TopP,
)
from hmi.api.schemas.shared import DeadlineMs, Request
from hmi.errors import InvalidInput

MOST_TEXTS = 128
"""The most texts that one call lets a model write: OpenAI's limit on `n`, here on prompts times `n`."""
COMPLETION_TOKENS = 16
"""OpenAI's default of `max_tokens` for completions."""


def refused(cure: str) -> BeforeValidator:
    """Annotates a field that is not served. It may be null, false or empty, as some clients send it."""

    def check(value: Any) -> None:
        if value:
            raise ValueError(f"is not served: {cure}")

    return BeforeValidator(check)


def _wrong(field: str, what: str) -> InvalidInput:
    return InvalidInput(f"{field} {what}", field=field)


def _no_choice(value: Any) -> Any:
    if value not in (None, "none", "auto"):
        raise ValueError("is not served: models here call no tools, so leave it out")


_OURS = "Not OpenAI's: see POST /generate."


class StreamOptions(Request):
    include_usage: bool | None = Field(
        default=None, description="A last chunk without choices has `usage`; it is null in those before."
    )
    include_obfuscation: bool | None = Field(default=None, description="Ignored: nothing is added.")


class Wanted(Request):
    """The fields that both calls have. Null stands for the default everywhere."""

    model: Id = Field(description="tenant.model, a model of the task generation.")
    max_tokens: MaxTokens | None = None
    temperature: Temperature | None = Field(default=None, description="Default: 1.")
    top_p: TopP | None = Field(default=None, description="Default: 1.")
    n: int | None = Field(default=None, ge=1, le=MOST_TEXTS, description="Texts a prompt. Default: 1.")
    stop: Stops | None = None
    seed: int | None = Field(
        default=None, ge=-(2**63), lt=2**63, description="Text i of a prompt has the seed `seed + i`."
    )
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: AskedForm | None = Field(
        default=None, description="See `form` of POST /generate. OpenAI has it for chats alone."
    )
    user: str | None = Field(default=None, description="Ignored.")
    logit_bias: Annotated[Any, refused("leave it out, or use stop")] = None
    top_k: TopK | None = Field(default=None, description=_OURS)
    min_p: MinP | None = Field(default=None, description=_OURS)
    repetition_penalty: RepetitionPenalty | None = Field(default=None, description=_OURS)
    deadline_ms: DeadlineMs | None = Field(default=None, description=_OURS)

    def check(self) -> None:
        """Raise InvalidInput, naming one of them, if fields do not go together."""
        if self.stream_options is not None and not self.stream:
            raise _wrong("stream_options", "is for streams: set stream, or leave it out")


_Tokens = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(fail_fast=True)]


def _prompt_kind(value: Any) -> str | None:
    if not isinstance(value, list):
        return "<text>" if isinstance(value, str) else None
    # Only the first item is looked at: the type of the others is checked one by one.
    kinds: dict[type, str] = {int: "<tokens>", list: "<several>"}
    return kinds.get(type(value[0]), "<texts>") if value else "<texts>"


class CompletionBody(Wanted):
    """A prompt or several, each to be continued."""

    prompt: Annotated[
        Annotated[str, Tag("<text>")]
        | Annotated[Annotated[list[str], Field(min_length=1, fail_fast=True)], Tag("<texts>")]
        | Annotated[_Tokens, Tag("<tokens>")]
        | Annotated[Annotated[list[_Tokens], Field(min_length=1, fail_fast=True)], Tag("<several>")],
        Discriminator(
            _prompt_kind,
            "prompt_form",
            "must be a text, a list of texts, tokens, or a list of lists of tokens",
        ),
    ] = Field(description="Tokens are ids of the root's own vocabulary. An empty prompt begins a text.")
    max_tokens: MaxTokens | None = Field(default=None, description=f"Default: {COMPLETION_TOKENS}.")
    logprobs: Logprobs | None = Field(
        default=None, description="Tell each token's log-probability, and those of this many best tokens."
    )
    best_of: int | None = Field(default=None, description="Only the same as n: no texts are thrown away.")
    echo: Annotated[Any, refused("put the prompt before the text yourself")] = None
    suffix: Annotated[Any, refused("models here only write what follows a prompt")] = None

    def check(self) -> None:
        super().check()
        if self.best_of not in (None, self.n or 1):
            raise _wrong("best_of", "is not n, which is not served: raise n, and choose yourself")


_ONLY_TEXT = refused("models here read text only")


class TextPart(Request):
    image_url: Annotated[Any, _ONLY_TEXT] = None
    input_audio: Annotated[Any, _ONLY_TEXT] = None
    file: Annotated[Any, _ONLY_TEXT] = None
    type: Literal["text"]
    text: str


def _content_kind(value: Any) -> str | None:
    return "<text>" if isinstance(value, str) else "<parts>" if isinstance(value, list) else None


class ChatMessage(Request):
    """A message of a chat."""

    role: Literal["system", "developer", "user", "assistant"] = Field(
        description="developer is read as system. Tools' messages are refused: models here call none."
    )
    content: Annotated[
        Annotated[str, Tag("<text>")]
        | Annotated[Annotated[list[TextPart], Field(min_length=1)], Tag("<parts>")],
        Discriminator(_content_kind, "content_form", "must be a text, or a list of parts of the type text"),
    ]
    name: Annotated[Any, refused("write the name into the content")] = None
    tool_calls: Annotated[Any, refused("models here call no tools")] = None
    tool_call_id: Annotated[Any, refused("models here call no tools")] = None
    function_call: Annotated[Any, refused("models here call no functions")] = None
    audio: Annotated[Any, refused("models here read text only")] = None
    refusal: Annotated[Any, refused("put it into the content")] = None
    annotations: Annotated[Any, refused("put them into the content")] = None

    @property
    def plain(self) -> dict[str, str]:
        """The message as chat templates know it."""
        given = self.content
        content = given if isinstance(given, str) else "".join(part.text for part in given)
        return {"role": "system" if self.role == "developer" else self.role, "content": content}


_NO_TOOLS = refused("models here call no tools: leave it out")
_NO_AUDIO = refused("models here write text only: leave it out")


class ChatBody(Wanted):
    """A chat, whose next message the model writes."""

    messages: list[ChatMessage] = Field(min_length=1, max_length=1000)
    max_completion_tokens: MaxTokens | None = Field(
        default=None, description="The newer name of max_tokens. Default: as POST /generate."
    )
    logprobs: bool | None = Field(default=None, description="Tell each token's log-probability.")
    top_logprobs: Logprobs | None = Field(default=None, description="And those of this many best tokens.")
    tools: Annotated[Any, _NO_TOOLS] = None
    tool_choice: Annotated[Any, BeforeValidator(_no_choice)] = None
    parallel_tool_calls: Any = Field(default=None, description="Ignored: models here call no tools.")
    functions: Annotated[Any, _NO_TOOLS] = None
    function_call: Annotated[Any, BeforeValidator(_no_choice)] = None
    audio: Annotated[Any, _NO_AUDIO] = None
    modalities: list[Literal["text"]] | None = Field(default=None, description="Only text is written.")
    prediction: Annotated[Any, refused("leave it out")] = None
    web_search_options: Annotated[Any, refused("leave it out")] = None
    reasoning_effort: Annotated[Any, refused("models here write no separate reasoning: leave it out")] = None
    verbosity: Annotated[Any, refused("ask for it in a message, or set max_tokens")] = None
    store: Annotated[Any, refused("no texts are kept: leave it out")] = None
    metadata: Any = Field(default=None, description="Ignored.")
    service_tier: Literal["auto", "default"] | None = Field(default=None, description="Ignored.")
    safety_identifier: str | None = Field(default=None, description="Ignored.")
    prompt_cache_key: str | None = Field(
        default=None, description="Ignored: texts that begin alike share what was read, without a key."
    )

    def check(self) -> None:
        super().check()
        if self.top_logprobs is not None and not self.logprobs:
            raise _wrong("top_logprobs", "needs logprobs: set logprobs to true")
        if None not in (self.max_tokens, self.max_completion_tokens):
            raise _wrong("max_tokens", "is the older name of max_completion_tokens: give one of them")
