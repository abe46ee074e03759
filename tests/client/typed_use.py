"""A program that uses the client, for mypy: `test_types.py` checks it. It is not run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_type

import hmi


def from_threads(client: hmi.Client) -> None:
    assert_type(client.infer("a.b", "one"), hmi.Prediction)
    assert_type(client.infer("a.b", ("a", "pair")), hmi.Prediction)
    assert_type(client.infer("a.b", {"text": "one"}, exact=True), hmi.Prediction)
    assert_type(client.infer("a.b", ["some"], returns=["scores"]), list[hmi.Prediction])
    assert_type(client.infer("a.b", (text for text in "ab")), list[hmi.Prediction])
    assert_type(client.infer("a.b", [["a", "word"]]), list[hmi.Prediction])
    assert_type(client.models.create("a.b", [{"text": "x"}], domain="d"), hmi.Job)
    assert_type(client.models.get("a.b").labels, list[str])
    assert_type(client.models.list(), Iterator[hmi.client.Model])
    assert_type(client.generate("a.b", "once", top_k=3), hmi.client.GeneratedText)
    for piece in client.stream("a.b", messages=[{"role": "user", "content": "hello"}], stop=["."]):
        assert_type(piece, hmi.client.TextPiece | hmi.client.GeneratedText)


async def from_tasks(client: hmi.AsyncClient) -> None:
    assert_type(await client.infer("a.b", "one"), hmi.Prediction)
    assert_type(await client.models.create("a.b", "rows.csv", domain="d"), hmi.AsyncJob)
    assert_type(await client.generate("a.b", "once", seed=3), hmi.client.GeneratedText)
    async for piece in client.stream("a.b", "once", temperature=0.5):
        assert_type(piece, hmi.client.TextPiece | hmi.client.GeneratedText)
    assert_type([model async for model in client.models.list()], list[hmi.client.Model])


def wrong(client: hmi.Client) -> None:
    client.infer("a.b", "one", exact="yes")  # type: ignore[call-overload]
    client.infer("a.b", 5)  # type: ignore[call-overload]
    client.generate("a.b", "once", top_k="3")  # type: ignore[arg-type]
