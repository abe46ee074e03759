"""Texts and streams that the client asks for, against a server that refuses and breaks off."""

from __future__ import annotations

import json
from typing import Any

import pytest

import hmi
from hmi.client import GeneratedText, TextPiece
from hmi.client.errors import (
    ApiError,
    Damaged,
    DeadlineExceeded,
    InvalidInput,
    QuotaExceeded,
    Unavailable,
    Unreachable,
)
from tests.client.scripted_server import Said, Script, Sent, error, scripted

WHOLE = {
    "id": "t1",
    "model": "acme.m",
    "version": 3,
    "text": "one\u2028two\x85three",
    "finish": "stop",
    "seed": 7,
    "usage": {"prompt_tokens": 4, "cached_tokens": 0, "written_tokens": 3},
    "logprobs": None,
    "plot": {"trigram": 3},
    "timing": {"rest_ms": 2.0},
}
STREAM = {"Content-Type": "text/event-stream"}


def events(*given: tuple[str, Any]) -> bytes:
    """Events as the server writes them: it escapes no character beyond ASCII."""
    lines = (f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n" for name, data in given)
    return "".join(lines).encode()


PIECES = [("text", {"text": text, "logprobs": None}) for text in ("one\u2028", "two\x85", "three")]


def saying(*said: Said) -> Script:
    """The answers in turn; the last one again and again."""
    return lambda request, at: said[min(at, len(said) - 1)]


def test_a_text_comes_whole_and_in_pieces() -> None:
    def script(request: Sent, at: int) -> Said:
        return (
            Said(200, events(*PIECES, ("end", WHOLE)), STREAM) if request.json["stream"] else Said(200, WHOLE)
        )

    chat = ({"role": "user", "content": f"say {word}"} for word in ("it",))
    with scripted(script) as server, hmi.Client(server.url) as client:
        whole = client.generate("acme.m", "count", max_tokens=9, seed=7, stop=("x", "y"), top_p=None)
        *pieces, end = client.stream("acme.m", messages=chat, temperature=0.5)
    assert isinstance(whole, GeneratedText)
    assert (whole.text, whole.finish, whole.usage.written_tokens) == (WHOLE["text"], "stop", 3)
    assert all(isinstance(piece, TextPiece) for piece in pieces)
    assert [piece.text for piece in pieces] == ["one\u2028", "two\x85", "three"]
    assert end == whole
    first, second = (request.json for request in server.sent)
    assert server.sent[0].path == "/generate/acme.m"
    assert first == {"prompt": "count", "max_tokens": 9, "seed": 7, "stop": ["x", "y"], "stream": False}
    asked = {"role": "user", "content": "say it"}
    assert second == {"messages": [asked], "temperature": 0.5, "stream": True}


def test_there_is_one_prompt_or_chat() -> None:
    with hmi.Client("http://127.0.0.1:1") as client:
        for given in ({}, {"prompt": "a", "messages": [{"role": "user", "content": "b"}]}):
            with pytest.raises(InvalidInput, match="give one of them"):
                client.generate("acme.m", **given)  # type: ignore[arg-type]
            with pytest.raises(InvalidInput, match="give one of them"):
                next(client.stream("acme.m", **given))  # type: ignore[arg-type]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"prompt": "a", "stop": 5}, "stop: 5 is not a text: give a text, or several in a list"),
    ({"prompt": "a", "stop": ["x", 5]}, "stop: 5 is not a text"),
    ({"prompt": "a", "stop": b"x"}, "stop: b'x' is not a text"),
    ({"messages": 5}, "messages is not a list: give a list of mappings"),
    ({"messages": "hi"}, "messages is not a list"),
    ({"messages": {"role": "user", "content": "hi"}}, "messages is not a list"),
    ({"messages": ["hi"]}, r"messages\[0\] is 'hi': give a mapping with role and content"),
]


@pytest.mark.parametrize(("given", "said"), BAD)
async def test_what_json_cannot_be_made_of_is_refused_here(given: dict[str, Any], said: str) -> None:
    with hmi.Client("http://127.0.0.1:1") as client:
        for call in (
            lambda: client.generate("acme.m", **given),
            lambda: next(client.stream("acme.m", **given)),
        ):
            with pytest.raises(InvalidInput, match=said) as caught:
                call()
            assert caught.value.details["field"] in given
    async with hmi.AsyncClient("http://127.0.0.1:1") as other:
        with pytest.raises(InvalidInput, match=said):
            await other.generate("acme.m", **given)
        with pytest.raises(InvalidInput, match=said):
            await anext(other.stream("acme.m", **given))


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("count", [0, 1, 3])
async def test_a_text_that_breaks_off_is_told_of_as_such(cut: bool, count: int) -> None:
    said = Said(200, events(*PIECES[:count]), STREAM, cut=cut)
    wanted = ("before its first piece", "after 1 piece", "", "after 3 pieces")[count]
    with scripted(saying(said)) as server:
        async with hmi.AsyncClient(server.url) as other:
            with pytest.raises(Unreachable, match=f"broke off {wanted} .*: ask again") as first:
                _ = [piece async for piece in other.stream("acme.m", "count")]
        with hmi.Client(server.url) as client:
            with pytest.raises(Unreachable, match=f"broke off {wanted} .*: ask again") as second:
                list(client.stream("acme.m", "count"))
    for caught in (first, second):
        assert caught.value.sent
        assert "no answer" not in caught.value.message
        assert ("the text has no end" in caught.value.message) is (not cut)


def test_a_stream_is_sent_again_until_it_has_begun() -> None:
    busy, whole = error(503, "unavailable"), Said(200, events(*PIECES, ("end", WHOLE)), STREAM)
    with scripted(saying(busy, Said(None), whole)) as server, hmi.Client(server.url) as client:
        assert [piece.text for piece in client.stream("acme.m", "count")][-1] == WHOLE["text"]
    assert len(server.sent) == 3
    waits = error(429, "quota_exceeded")
    with scripted(saying(waits)) as server, hmi.Client(server.url, attempts=2) as client:
        with pytest.raises(QuotaExceeded):
            next(client.stream("acme.m", "count"))
    assert len(server.sent) == 2


@pytest.mark.parametrize(
    ("said", "raised"),
    [
        (Said(200, events(*PIECES[:1]), STREAM, cut=True), Unreachable),
        (Said(200, events(*PIECES[:1]), STREAM), Unreachable),
        (Said(200, events(PIECES[0], ("error", error(503, "unavailable").body)), STREAM), Unavailable),
        (
            Said(200, events(PIECES[0], ("error", error(504, "deadline_exceeded").body)), STREAM),
            DeadlineExceeded,
        ),
        (Said(200, events(PIECES[0], ("error", error(500, "damaged").body)), STREAM), Damaged),
        (Said(200, events(PIECES[0], ("end", {"text": "no more"})), STREAM), ApiError),
    ],
)
def test_a_stream_that_has_begun_is_not_sent_again(said: Said, raised: type[ApiError]) -> None:
    with scripted(saying(said)) as server, hmi.Client(server.url) as client:
        coming = client.stream("acme.m", "count")
        assert next(coming).text == "one\u2028"
        with pytest.raises(raised) as caught:
            next(coming)
    assert len(server.sent) == 1
    if raised in (DeadlineExceeded, Damaged):
        assert (caught.value.request_id, caught.value.message) == ("r-1", f"it is {caught.value.kind}")


async def test_an_asynchronous_stream_is_alike() -> None:
    unknown = ("later", {"what": "a newer server says"})
    said = Said(200, b": still here\n\n" + events(unknown, *PIECES, ("end", WHOLE)), STREAM)
    with scripted(saying(error(503, "unavailable"), said)) as server:
        async with hmi.AsyncClient(server.url) as client:
            found = [piece.text async for piece in client.stream("acme.m", "count")]
            assert found == ["one\u2028", "two\x85", "three", WHOLE["text"]]
            with pytest.raises(ApiError, match="no JSON"):
                await client.generate("acme.m", "count", deadline_ms=500)
    assert server.sent[2].json["deadline_ms"] == 500


def test_a_text_has_only_what_is_left_of_its_deadline() -> None:
    busy = error(503, "unavailable")
    with scripted(saying(busy, Said(200, WHOLE))) as server, hmi.Client(server.url) as client:
        client.generate("acme.m", "count", deadline_ms=60_000)
    first, second = (request.json["deadline_ms"] for request in server.sent)
    assert first == 60_000
    assert 0 < second < first
    with scripted(saying(busy)) as server, hmi.Client(server.url) as client:
        with pytest.raises(DeadlineExceeded):
            next(client.stream("acme.m", "count", deadline_ms=10))
