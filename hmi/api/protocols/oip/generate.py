"""The protocol's extension for texts: /generate and /generate_stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import ClassVar

from pydantic import Field

from hmi.api.protocols.oip.asking import check_version
from hmi.api.protocols.oip.described import optional
from hmi.api.protocols.oip.schemas import ID_CHARS, Open
from hmi.api.protocols.texts import Texts
from hmi.api.protocols.writing import Event, WritingCall, WritingEndpoint, check_writes, sampling_of, stops_of
from hmi.api.schemas.generate import (
    ChoiceProbability,
    FormBody,
    MaxTokens,
    MinP,
    Penalty,
    RepetitionPenalty,
    Seed,
    Stops,
    Temperature,
    TopK,
    TopP,
    probabilities_of,
)
from hmi.api.schemas.shared import Answer, DeadlineMs
from hmi.core import ModelId
from hmi.engine.writing.request import WriteRequest, WrittenText
from hmi.errors import InvalidInput

MOST_TOKENS = 20
"""The protocol's default of `max_tokens`."""


class GenerateParameters(Open):
    """How the text is chosen, as POST /generate has it. Unknown parameters are ignored."""

    max_tokens: MaxTokens | None = Field(default=None, description=f"Default: {MOST_TOKENS}.")
    temperature: Temperature | None = Field(default=None, description="Default: 0, the likeliest token.")
    top_k: TopK | None = None
    top_p: TopP | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Seed | None = None
    stop: Stops | None = None
    form: FormBody | None = None
    best_of: int | None = Field(default=None, ge=0, le=1, description="Only 1: no texts are thrown away.")
    deadline_ms: DeadlineMs | None = None


class GenerateRequest(GenerateParameters):
    """A prompt. Triton's clients put parameters beside it; those in `parameters` win."""

    text_input: str | None = Field(default=None, description="Required. The text continues it.")
    id: str | None = Field(default=None, max_length=ID_CHARS, description="Is repeated.")
    parameters: GenerateParameters = Field(default_factory=GenerateParameters)


class GenerateResponse(Answer):
    """A text."""

    text_output: str
    model_name: str
    model_version: str
    id: str | None = None
    choices: list[ChoiceProbability] | None = Field(
        default=None, description="Each choice with its probability, at the end, if the form asks for them."
    )


class Piece(GenerateResponse):
    """A piece of a text, or its end."""

    done: bool


class TextOutput:
    """The codec of both calls."""

    error_event: ClassVar[str | None] = None

    def __init__(self, call: WritingCall, streams: bool) -> None:
        self.streams, self.body = streams, call.body
        body: GenerateRequest = call.body
        self.model = ModelId.parse(call.where.path["model"])
        check_writes(call.where, self.model, lambda task: f"POST /v2/models/{self.model}/infer")
        assert call.where.models is not None
        check_version(call.where.models.record(self.model), call.where.path.get("version", ""))
        if body.text_input is None:
            raise InvalidInput("text_input is missing: add it", field="text_input")
        inside = {name: value for name, value in body.parameters if value is not None}
        names = {"prompt": "text_input", **{name: f"parameters.{name}" for name in inside}}
        given = body.model_copy(update=inside)
        form = None if given.form is None else given.form.form(names.get("form", "form"))
        most = None if form is not None and form.probabilities else MOST_TOKENS
        self.wants = [
            WriteRequest(
                self.model,
                body.text_input,
                given.max_tokens or most,
                sampling_of(given),
                stops_of(given.stop),
                form,
                deadline=call.deadline(given.deadline_ms),
                names=names,
            )
        ]

    def whole(self, texts: Sequence[WrittenText]) -> GenerateResponse:
        return GenerateResponse(
            text_output=texts[0].text,
            model_name=str(self.model),
            model_version=str(texts[0].version),
            id=self.body.id,
            choices=probabilities_of(texts[0]),
        )

    async def events(self, texts: Texts) -> AsyncGenerator[Event]:
        async for _, piece in texts:
            whole = piece if isinstance(piece, WrittenText) else None
            told = Piece(
                text_output=piece.text if whole is None else "",
                model_name=str(self.model),
                model_version=str(texts.version),
                id=self.body.id,
                choices=None if whole is None else probabilities_of(whole),
                done=whole is not None,
            )
            yield Event(told.model_dump_json())


WRITING = tuple(
    WritingEndpoint(
        f"{path}/{call}",
        f"Continue a prompt{how} (Open Inference Protocol){which}.",
        GenerateRequest,
        GenerateResponse,
        partial(TextOutput, streams=bool(how)),
        raw=optional(GenerateRequest),
    )
    for path, which in (
        ("/v2/models/{model}", ""),
        ("/v2/models/{model}/versions/{version}", ", with the version that answers"),
    )
    for call, how in (("generate", ""), ("generate_stream", ", as server-sent events"))
)
