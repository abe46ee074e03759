"""The call that lets a model write text, in one answer or as a stream."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING

from hmi.api.http.call import Reply, RouteCall
from hmi.api.http.events import HEARTBEAT_S, Events, stream
from hmi.api.schemas.generate import (
    ChoiceProbability,
    GenerateAnswer,
    GenerateBody,
    TextPiece,
    TokenLogprob,
    TopToken,
    WrittenTokens,
)
from hmi.engine.writing.request import TokenScore, WriteRequest, WrittenPiece, WrittenPieces, WrittenText
from hmi.model.text.sampling import Sampling

if TYPE_CHECKING:
    from aiohttp import web


async def generate(call: RouteCall) -> Reply | web.StreamResponse:
    """Write a text. The answer has begun with the first piece, so an error after it is an event."""
    body: GenerateBody = call.body
    wants = _wants(call, body)
    async with call.services.inference.write(wants, call.caller) as pieces:
        if body.stream and call.request is not None:
            return await _streamed(call, wants, pieces)
        async for piece in pieces:
            if isinstance(piece, WrittenText):
                return Reply(_answer(call, wants, piece))
    raise AssertionError("the last piece is the whole text")


async def _streamed(call: RouteCall, wants: WriteRequest, pieces: WrittenPieces) -> web.StreamResponse:
    from hmi.api.http.dispatch import shape  # which loads the web server

    request = call.request
    assert request is not None
    coming = aiter(pieces)
    first = await anext(coming)  # what fails before is an answer of its own status

    async def send(events: Events) -> None:
        piece = first
        while isinstance(piece, WrittenPiece):
            scores = _scores(wants, piece.scores)
            await events.send("text", TextPiece(text=piece.text, logprobs=scores).model_dump_json())
            piece = await _next(coming, events)
        await events.send("end", _answer(call, wants, piece).model_dump_json())

    return await stream(request, send, lambda error: shape(request, error)[0])


async def _next(
    coming: AsyncIterator[WrittenPiece | WrittenText], events: Events
) -> WrittenPiece | WrittenText:
    """The next piece. Comments keep the connection open while it is waited for."""
    waiting = asyncio.ensure_future(anext(coming))
    try:
        while not (await asyncio.wait({waiting}, timeout=HEARTBEAT_S))[0]:
            await events.alive()
        return await waiting
    finally:
        waiting.cancel()


def _wants(call: RouteCall, body: GenerateBody) -> WriteRequest:
    seed = body.seed if body.seed is not None else secrets.randbits(32)
    return WriteRequest(
        call.model(),
        _prompt(body),
        body.max_tokens,
        Sampling(
            temperature=body.temperature,
            top_k=body.top_k,
            top_p=body.top_p,
            min_p=body.min_p,
            repetition_penalty=body.repetition_penalty,
            presence_penalty=body.presence_penalty,
            frequency_penalty=body.frequency_penalty,
            seed=seed,
            logprobs=body.logprobs,
        ),
        (body.stop,) if isinstance(body.stop, str) else tuple(body.stop),
        None if body.form is None else body.form.form(),
        None if body.deadline_ms is None else call.arrived + body.deadline_ms / 1000,
    )


def _prompt(body: GenerateBody) -> str | list[Mapping[str, str]]:
    return [message.model_dump() for message in body.messages or ()] if body.prompt is None else body.prompt


def _answer(call: RouteCall, wants: WriteRequest, written: WrittenText) -> GenerateAnswer:
    return GenerateAnswer(
        id=call.id,
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
        choices=[ChoiceProbability(text=text, probability=p) for text, p in written.choices] or None,
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
