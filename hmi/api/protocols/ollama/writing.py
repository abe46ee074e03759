"""Ollama's calls that let models write: /api/generate and /api/chat."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from pydantic_core import to_json

from hmi.api.protocols.base import LINES
from hmi.api.protocols.ollama.dialect import model_of
from hmi.api.protocols.ollama.schemas import (
    OllamaChatBody,
    OllamaChatted,
    OllamaGenerateBody,
    OllamaGenerated,
    OllamaOptions,
    Wanted,
)
from hmi.api.protocols.texts import Texts
from hmi.api.protocols.writing import Event, WritingCall, WritingEndpoint, sampling_of, stops_of
from hmi.core import now
from hmi.engine.writing.request import UserTurn, WriteRequest, WrittenText
from hmi.model.text.form import Form

_NAMES = {"max_tokens": "options.num_predict", "stop": "options.stop"}


class Writing:
    """Both calls. It implements `Codec`.

    prompt: returns the prompt of a body, see `WriteRequest`. said: returns the field of an answer that has a
    text.
    """

    error_event: ClassVar[str | None] = None

    def __init__(
        self,
        call: WritingCall,
        *,
        answer: type[OllamaGenerated] | type[OllamaChatted],
        prompt: Callable[[Any], Any],
        said: Callable[[str], dict[str, Any]],
    ) -> None:
        self._answer, self._said = answer, said
        body: Wanted = call.body
        self._call, self.streams, given = call, body.stream is not False, body.options or OllamaOptions()
        model = model_of(body.model, call.where)
        sampling = sampling_of(given, repetition_penalty=given.repeat_penalty)
        self.wants = [
            WriteRequest(
                model,
                prompt(body),
                max(given.num_predict or 0, 0) or None,
                sampling,
                stops_of(given.stop),
                _form_of(body),
                names=_NAMES,
            )
        ]

    def whole(self, texts: Sequence[WrittenText]) -> Any:
        return self._answer(**self._said(texts[0].text), **self._end(texts[0]))

    async def events(self, texts: Texts) -> AsyncGenerator[Event]:
        async for _, piece in texts:
            if isinstance(piece, WrittenText):
                yield Event(to_json({**self._said(""), **self._end(piece)}).decode())
            else:
                yield Event(to_json({**self._head(), **self._said(piece.text), "done": False}).decode())

    def _head(self) -> dict[str, Any]:
        return {"model": self._call.body.model, "created_at": now()}

    def _end(self, text: WrittenText) -> dict[str, Any]:
        queued, first, rest = (int(1e6 * text.timing[f"{n}_ms"]) for n in ("queue", "first_token", "rest"))
        return {
            **self._head(),
            "done": True,
            "done_reason": "length" if text.finish == "length" else "stop",
            "total_duration": int(1e9 * (time.monotonic() - self._call.arrived)),
            "load_duration": queued,
            "prompt_eval_count": text.prompt_tokens,
            "prompt_eval_duration": first - queued,
            "eval_count": text.written_tokens,
            "eval_duration": rest,
        }


def _prompt(body: OllamaGenerateBody) -> str | UserTurn:
    return body.prompt if body.raw else UserTurn(body.prompt)


def _chat(body: OllamaChatBody) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in body.messages]


def _form_of(body: Wanted) -> Form | None:
    if not isinstance(body.format, dict) and not body.format:
        return None
    schema = body.format if isinstance(body.format, dict) else None
    return Form(schema, json=schema is None, place="format", value_place="format")


WRITING = (
    WritingEndpoint(
        "/api/generate",
        "Write a text, as lines of JSON or in one answer (Ollama).",
        OllamaGenerateBody,
        OllamaGenerated,
        partial(Writing, answer=OllamaGenerated, prompt=_prompt, said=lambda text: {"response": text}),
        media=LINES,
    ),
    WritingEndpoint(
        "/api/chat",
        "Answer a chat, as lines of JSON or in one answer (Ollama).",
        OllamaChatBody,
        OllamaChatted,
        partial(
            Writing,
            answer=OllamaChatted,
            prompt=_chat,
            said=lambda text: {"message": {"role": "assistant", "content": text}},
        ),
        media=LINES,
    ),
)
