"""The call that lets a model write text, in one answer or as a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import ClassVar

from hmi.api.protocols.texts import Texts
from hmi.api.protocols.writing import Event, WritingCall, sampling_of, stops_of
from hmi.api.schemas.generate import (
    GenerateAnswer,
    GenerateBody,
    TextPiece,
    TokenLogprob,
    TopToken,
    WrittenTokens,
    probabilities_of,
)
from hmi.core import ModelId
from hmi.engine.writing.request import TokenScore, WriteRequest, WrittenText


class Generation:
    """The codec of HMI's own call."""

    error_event: ClassVar[str | None] = "error"

    def __init__(self, call: WritingCall) -> None:
        self._call, body = call, call.body
        assert isinstance(body, GenerateBody)
        self.streams = body.stream
        self.wants = [_wants(call, body)]

    def whole(self, texts: Sequence[WrittenText]) -> GenerateAnswer:
        (written,) = texts
        return _answer(self._call.id, self.wants[0], written)

    async def events(self, texts: Texts) -> AsyncGenerator[Event]:
        async for _, piece in texts:
            if isinstance(piece, WrittenText):
                yield Event(self.whole([piece]).model_dump_json(), "end")
            else:
                scores = _scores(self.wants[0], piece.scores)
                yield Event(TextPiece(text=piece.text, logprobs=scores).model_dump_json(), "text")


def _wants(call: WritingCall, body: GenerateBody) -> WriteRequest:
    return WriteRequest(
        ModelId.parse(call.where.path["model"]),
        _prompt(body),
        body.max_tokens,
        sampling_of(body, logprobs=body.logprobs),
        stops_of(body.stop),
        None if body.form is None else body.form.form(),
        call.deadline(body.deadline_ms),
    )


def _prompt(body: GenerateBody) -> str | list[Mapping[str, str]]:
    return [message.model_dump() for message in body.messages or ()] if body.prompt is None else body.prompt


def _answer(id: str, wants: WriteRequest, written: WrittenText) -> GenerateAnswer:
    return GenerateAnswer(
        id=id,
        model=str(written.model),
        version=written.version,
        text=written.text,
        finish=written.finish,
        seed=wants.sampling.seed if wants.sampling.temperature else None,
        usage=WrittenTokens(
            prompt_tokens=written.prompt_tokens,
            cached_tokens=written.cached_tokens,
            written_tokens=written.written_tokens,
        ),
        logprobs=_scores(wants, written.scores),
        choices=probabilities_of(written),
        plot=dict(written.plot),
        timing=dict(written.timing),
    )


def _scores(wants: WriteRequest, scores: Sequence[TokenScore]) -> list[TokenLogprob] | None:
    if wants.sampling.logprobs is None:
        return None
    return [
        TokenLogprob(
            token=each.text,
            logprob=each.logprob,
            top=[TopToken(token=text, logprob=logprob) for text, logprob in each.best],
        )
        for each in scores
    ]
