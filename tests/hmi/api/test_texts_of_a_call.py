"""Calls of other protocols that let models write, in a server of this process: several texts of one call,
streams that fail, readers that leave, what is counted."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from hmi.api.access.caller import ADMINISTRATOR
from hmi.api.protocols.texts import Texts
from hmi.core import ModelId
from hmi.engine.writing.request import WriteRequest
from hmi.errors import QuotaExceeded
from hmi.model.text.sampling import Sampling
from plot_store import Reader
from tests.hmi.labs.api_world import World
from tests.hmi.labs.writing_lab import PROMPT, server

ONE = ModelId("acme", "one")
LONG = " ".join([PROMPT] * 5)


def wanted(prompts: list[Any], most: int = 6) -> list[WriteRequest]:
    return [
        WriteRequest(ONE, prompt, most, Sampling(temperature=1.0, seed=i), index=i)
        for i, prompt in enumerate(prompts)
    ]


async def written(world: World, wants: list[WriteRequest]) -> Texts:
    async with world.services.inference.write(wants, ADMINISTRATOR) as texts:
        await texts.whole()
    assert isinstance(texts, Texts)
    return texts


async def test_texts_of_one_prompt_read_it_once(writing_data: Path) -> None:
    """They are those that are written alone, and each but the first finds the prompt's full pages."""
    chat = [{"role": "user", "content": LONG}]
    async with server(writing_data) as world:
        for prompt in (LONG, chat):
            together = (await written(world, wanted([prompt] * 4))).ordered
            full = 16 * ((together[0].prompt_tokens - 1) // 16)
            assert full > 16
            assert [text.cached_tokens for text in together] == [0, full, full, full]
            assert len({text.text for text in together}) == 4
            for index, text in enumerate(together):
                alone = WriteRequest(ONE, prompt, 6, Sampling(temperature=1.0, seed=index))
                assert (await written(world, [alone])).ordered[0].text == text.text
        mixed = (await written(world, wanted([f"good {LONG}", "bad plot", f"good {LONG}"]))).ordered
        assert [bool(text.cached_tokens) for text in mixed] == [False, False, True]


async def test_a_call_of_several_texts_is_one_request_of_all_their_tokens(writing_data: Path) -> None:
    async with server(writing_data) as world:
        await world.call("PATCH", "/manage/tenants/acme", {"limits": {"requests_per_s": 0.1}})
        texts = await written(world, wanted([PROMPT] * 3))  # there is room for one request
        tokens = sum(text.tokens for text in texts.ordered)
        assert sum(cost.tokens for cost in texts.costs) == tokens
        totals = world.services.monitoring.metrics.usage.of("acme")
        assert (totals.requests, totals.inputs, totals.tokens) == (1, 3, tokens)
        tally = world.services.inference.tally.of(ONE, 1)
        assert (tally.calls, tally.inputs) == (1, 3)
        with pytest.raises(QuotaExceeded):
            await written(world, wanted([PROMPT]))


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_stream_that_fails_ends_with_an_error_of_openais(writing_data: Path, path: str) -> None:
    given = {"prompt": PROMPT} if "chat" not in path else {"messages": [{"role": "user", "content": PROMPT}]}
    body = {"model": "acme.one", **given, "max_tokens": 450, "temperature": 0, "stream": True, "n": 2}
    async with server(writing_data) as world:
        async with world.client.post(path, json=body) as response:
            assert response.status == 200, await response.text()
            await response.content.readline()
            world.services.engine._writers.fail_all(RuntimeError("a bug"))  # type: ignore[attr-defined]
            events = (await response.text()).strip().split("\n\n")
    assert events[-1].startswith("data: "), "OpenAI's events have no names"
    error = json.loads(events[-1].removeprefix("data: "))["error"]
    assert (error["type"], error["code"], error["param"]) == ("server_error", "internal", None)
    assert "a bug" not in error["message"]


async def test_what_fails_before_a_stream_has_its_own_status(
    writing_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with server(writing_data) as world:
        monkeypatch.setattr(Reader, "lookup", None)
        body = {"model": "acme.one", "prompt": PROMPT, "stream": True, "n": 3}
        assert (await world.call("POST", "/v1/completions", body))[0] == 500


async def test_a_reader_that_leaves_frees_all_texts_of_its_call(writing_data: Path) -> None:
    async with server(writing_data) as world:
        await written(world, wanted(["a"], 1))
        (writer,) = world.services.engine._loader.writers()  # type: ignore[attr-defined]
        body = {"model": "acme.one", "prompt": [PROMPT, "a"], "n": 2, "max_tokens": 450, "stream": True}
        response = await world.client.post("/v1/completions", json=body)
        assert (await response.content.readline()).startswith(b"data: ")
        assert writer.pages[0] > 0
        response.close()
        while writer.drafts or writer.pages[0]:
            await asyncio.sleep(0.01)
        assert (await world.call("POST", "/generate/acme.one", {"prompt": "a"}))[0] == 200
