"""The bodies and the answers of Ollama's calls."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag

from hmi.api.protocols.openai.models import Id
from hmi.api.protocols.openai.requests import refused
from hmi.api.schemas.generate import MinP, Penalty, RepetitionPenalty, Stops, Temperature, TopK, TopP
from hmi.api.schemas.shared import Answer, Request

_LOADING = Field(default=None, description="Ignored: it says how a server loads a model.")
_ONLY_TEXT = refused("models here read text only: leave it out")


def _drawn(seed: Any) -> Any:
    return None if seed == -1 else seed


class OllamaOptions(Request):
    """The choice of tokens. Defaults are Ollama's, but repeat_penalty is off."""

    temperature: Temperature = 0.8
    top_k: TopK = 40
    top_p: TopP = 0.9
    min_p: MinP = 0.0
    repeat_penalty: RepetitionPenalty = Field(
        default=1.0, description="Makes tokens of the prompt and the text less likely; 1: off."
    )
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    seed: Annotated[int | None, BeforeValidator(_drawn)] = Field(
        default=None, ge=-(2**63), lt=2**63, description="Null or -1: the server draws one."
    )
    stop: Stops | None = None
    num_predict: int | None = Field(
        default=None,
        ge=-2,
        le=1_000_000,
        description="The most tokens of the text. Null or below 1: as POST /generate without max_tokens.",
    )
    num_ctx: Any = _LOADING
    num_keep: Any = _LOADING
    num_batch: Any = _LOADING
    num_gpu: Any = _LOADING
    num_thread: Any = _LOADING


def _format_kind(value: Any) -> str | None:
    return "<name>" if isinstance(value, str) else "<schema>" if isinstance(value, dict) else None


class OllamaShowBody(Request):
    model: Id = Field(description="tenant.model; :latest may follow.")


class Wanted(OllamaShowBody):
    """The fields of both calls that let a model write."""

    options: OllamaOptions | None = None
    keep_alive: Any = Field(default=None, description="Ignored: models leave memory by themselves.")
    stream: bool | None = Field(
        default=None, description="False: one answer. Otherwise a line for each piece."
    )
    format: (
        Annotated[
            Annotated[Literal["", "json"], Tag("<name>")] | Annotated[dict[str, Any], Tag("<schema>")],
            Discriminator(_format_kind, "format_form", 'must be "json" or a JSON schema'),
        ]
        | None
    ) = Field(
        default=None,
        description='"json": the text is a JSON object. A schema: the text is JSON that is valid by it.',
    )
    think: Annotated[Any, refused("models here write no separate reasoning: leave it out")] = None


class OllamaGenerateBody(Wanted):
    """A prompt. It is a user's message if the root has a chat template; otherwise the text continues it."""

    prompt: str = Field(description="A call without a prompt, which asks Ollama to load a model, is refused.")
    raw: bool | None = Field(default=None, description="True: the text continues the prompt as it stands.")
    system: Annotated[Any, refused("send it as a message of POST /api/chat")] = None
    template: Annotated[Any, refused("send the whole prompt with raw true")] = None
    context: Annotated[
        Any, refused("send the whole prompt: a beginning that was read before is not read again")
    ] = None
    suffix: Annotated[Any, refused("models here only write what follows a prompt")] = None
    images: Annotated[Any, _ONLY_TEXT] = None


class OllamaMessage(Request):
    role: Literal["system", "user", "assistant"]
    content: str = ""
    images: Annotated[Any, _ONLY_TEXT] = None
    tool_calls: Annotated[Any, refused("models here call no tools")] = None


class OllamaChatBody(Wanted):
    """A chat. The model writes its next message."""

    messages: list[OllamaMessage] = Field(min_length=1, max_length=1000)
    tools: Annotated[Any, refused("models here call no tools: leave it out")] = None


class Ended(Answer):
    """The end of an answer of both calls. Durations are nanoseconds."""

    model: str
    created_at: str
    done: Literal[True] = True
    done_reason: Literal["stop", "length"]
    total_duration: int
    load_duration: int = Field(description="The time until the text's first step.")
    prompt_eval_count: int
    prompt_eval_duration: int
    eval_count: int = Field(description="The tokens written, including the one that ended the text.")
    eval_duration: int


class OllamaGenerated(Ended):
    """A text that continues a prompt."""

    response: str


class OllamaSaid(Answer):
    role: Literal["assistant"] = "assistant"
    content: str


class OllamaChatted(Ended):
    """A message that answers a chat."""

    message: OllamaSaid


class OllamaDetails(Answer):
    parent_model: str = Field(description="The root.")
    family: str = Field(description="The domain.")


class OllamaListed(Answer):
    """A model that writes, in a list."""

    name: str
    model: str
    modified_at: str
    size: int = Field(description="The bytes of the model, without its root and domain.")
    digest: str
    details: OllamaDetails


class OllamaModels(Answer):
    models: list[OllamaListed]


class OllamaShown(Answer):
    model_config = ConfigDict(protected_namespaces=())

    modified_at: str
    details: OllamaDetails
    model_info: dict[str, str | int]
    capabilities: list[Literal["completion"]]


class OllamaVersion(Answer):
    version: str


class OllamaError(Answer):
    """An error in Ollama's form."""

    error: str = Field(description="What is wrong, and what to do about it.")
