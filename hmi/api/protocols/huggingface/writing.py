"""Text generation for huggingface_hub's InferenceClient: the calls of text-generation-inference."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Any, ClassVar

from pydantic_core import to_json

from hmi.api.protocols.huggingface.dialect import check_parameters
from hmi.api.protocols.huggingface.schemas import (
    NEW_TOKENS,
    Generated,
    GenerationDetails,
    HubAnswer,
    HubBody,
    HubFinish,
    HubToken,
)
from hmi.api.protocols.openai.answers import ChatCompletion
from hmi.api.protocols.openai.requests import ChatBody
from hmi.api.protocols.openai.writing import Chats
from hmi.api.protocols.texts import Texts
from hmi.api.protocols.writing import Event, WritingCall, WritingEndpoint, check_writes, sampling_of, stops_of
from hmi.core import ModelId
from hmi.engine.writing.request import Finish, TokenScore, WriteRequest, WrittenPiece, WrittenText
from hmi.errors import InvalidInput

_NAMES = {"prompt": "inputs", "max_tokens": "parameters.max_new_tokens", "stop": "parameters.stop"}
_REASONS: dict[Finish, HubFinish] = {"end": "eos_token", "stop": "stop_sequence", "length": "length"}


class TextGeneration:
    """A call to the model's own address. The answer is a list of one text, as the hosted API gives it."""

    error_event: ClassVar[str | None] = None

    def __init__(self, call: WritingCall, streams: bool | None = None) -> None:
        """streams: None leaves it to the body."""
        self.body: HubBody = call.body
        self.given, prompt = self.body.given, self.body.inputs
        model = ModelId.parse(call.where.path["model"])
        check_writes(call.where, model, lambda task: f"POST /hf/{model}")
        check_parameters(self.given, "generation")
        if not isinstance(prompt, str):
            raise InvalidInput("inputs must be one text, which the model continues", field="inputs")
        self.prompt, self.streams = prompt, bool(self.body.stream) if streams is None else streams
        given = self.given
        narrowed = given.top_k is not None or given.top_p is not None
        draws = given.do_sample or narrowed or given.temperature not in (None, 1)
        sampling = sampling_of(
            given,
            temperature=(given.temperature or 1.0) if draws else 0.0,
            logprobs=0 if self.streams or given.details else None,
        )
        most = given.max_new_tokens or NEW_TOKENS
        form = None if given.grammar is None else given.grammar.form("parameters.grammar")
        self.wants = [WriteRequest(model, prompt, most, sampling, stops_of(given.stop), form, names=_NAMES)]

    def whole(self, texts: Sequence[WrittenText]) -> Any:
        return HubAnswer.model_construct([self.generated(texts[0])])

    def generated(self, text: WrittenText) -> Generated:
        details = None
        if self.given.details:
            tokens = [_token(score, score.text) for score in text.scores]
            details = GenerationDetails(**self._end(text), prefill=[], tokens=tokens)
        return Generated(generated_text=self._full(text), details=details)

    async def events(self, texts: Texts) -> AsyncGenerator[Event]:
        """One event for each token. The last one has the whole text, too, so each waits for the next."""
        last, index = None, 0
        async for _, piece in texts:
            whole = piece if isinstance(piece, WrittenText) else None
            if last is not None:
                index += 1
                (score,) = last.scores
                event = {
                    "index": index,
                    "token": _token(score, last.text),
                    "generated_text": None if whole is None else self._full(whole),
                    "details": None if whole is None else self._end(whole),
                }
                yield Event(to_json(event, inf_nan_mode="null").decode())
            last = piece if isinstance(piece, WrittenPiece) else None

    def _full(self, text: WrittenText) -> str:
        return self.prompt + text.text if self.given.return_full_text else text.text

    def _end(self, text: WrittenText) -> dict[str, Any]:
        return {
            "finish_reason": _REASONS[text.finish],
            "generated_tokens": text.written_tokens,
            "input_length": text.prompt_tokens,
            "seed": self.wants[0].sampling.seed if self.wants[0].sampling.temperature else None,
        }


class Generate(TextGeneration):
    """The calls /generate and /generate_stream of text-generation-inference."""

    def whole(self, texts: Sequence[WrittenText]) -> Generated:
        return self.generated(texts[0])


def _token(score: TokenScore, text: str) -> HubToken:
    return HubToken(id=score.id, text=text, logprob=score.logprob, special=score.special)


WRITING = (
    WritingEndpoint(
        "/hf/{model}/generate",
        "Continue a prompt (text-generation-inference).",
        HubBody,
        Generated,
        partial(Generate, streams=False),
    ),
    WritingEndpoint(
        "/hf/{model}/generate_stream",
        "Continue a prompt, as server-sent events (text-generation-inference).",
        HubBody,
        Generated,
        partial(Generate, streams=True),
    ),
    WritingEndpoint(
        "/hf/{model}/v1/chat/completions",
        "Answer a chat (huggingface_hub's InferenceClient). The path names the model.",
        ChatBody,
        ChatCompletion,
        Chats,
    ),
)
"""The calls of their own. TextGeneration answers at the model's own address."""
