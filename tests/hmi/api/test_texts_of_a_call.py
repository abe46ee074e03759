"""Calls of other protocols that let models write, in a server of this process: several texts of one call,
streams that fail, readers that leave, what is counted."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from hmi.api.access.caller import ADMINISTRATOR
from hmi.api.handlers.protocols import write
from hmi.api.protocols.texts import Texts
from hmi.core import ModelId
from hmi.engine.writing import writers
from hmi.engine.writing.request import WriteRequest
from hmi.errors import QuotaExceeded
from hmi.model.text.sampling import Sampling
from plot_store import Reader
from tests.hmi.labs.api_world import World
from tests.hmi.labs.writing_lab import PROMPT, server

ONE, BETA = ModelId("acme", "one"), ModelId("beta", "one")
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


async def test_a_call_that_an_idle_tenant_makes_is_admitted_whole(writing_data: Path) -> None:
    """Also if all its texts together are more than what one tenant may have waiting. Another call of the
    tenant then waits, and is refused before anything is written."""
    async with server(writing_data, queue_tokens=400) as world:
        chat = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 40, "n": 8}
        status, answer, _ = await world.call("POST", "/v1/chat/completions", {"model": "acme.one", **chat})
        assert (status, len(answer.get("choices", ()))) == (200, 8), answer
        room = world.services.engine._writers._room  # type: ignore[attr-defined]
        assert room.taken == 0
        usage = world.services.monitoring.metrics.usage
        async with world.services.inference.write(wanted([LONG] * 4, 300), ADMINISTRATOR) as texts:
            async for _ in texts:
                break
            assert room.taken > 4 * 300
            before = int(usage.of("acme").inputs)
            with pytest.raises(QuotaExceeded, match="wait for the answers to its calls under way"):
                await written(world, wanted([PROMPT]))
            await written(world, [WriteRequest(BETA, PROMPT, 5)])
            assert int(usage.of("acme").inputs) == before
        assert room.taken == 0


async def test_what_a_call_waits_for_becomes_less_as_its_texts_end(writing_data: Path) -> None:
    async with server(writing_data) as world:
        room = world.services.engine._writers._room  # type: ignore[attr-defined]
        wants = [*wanted([LONG], 200), WriteRequest(ONE, "a", 1, index=1)]
        async with world.services.inference.write(wants, ADMINISTRATOR) as texts:
            assert room.taken >= 201
            begun: dict[int, Any] = texts._begun  # type: ignore[attr-defined]
            async for _ in texts:
                if 1 in texts.done and 0 in begun:
                    break
            draft = begun[0]
            assert room.taken in (0, len(draft.answer.prompt) + 200), "of the first as it was counted"
        assert room.taken == 0


async def test_a_stream_is_kept_open_while_its_first_token_is_waited_for(
    writing_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "MOST_WRITTEN", 1)
    monkeypatch.setattr(write, "HEARTBEAT_S", 0.02)
    body = {"model": "acme.one", "prompt": PROMPT, "max_tokens": 4, "stream": True}
    async with server(writing_data) as world:
        await written(world, wanted(["a"], 1))
        places = world.services.engine._writers._places  # type: ignore[attr-defined]
        await places.take("acme")
        for path, wants in (("/v1/completions", body), ("/generate/acme.one", {**body, "model": None})):
            given = {name: value for name, value in wants.items() if value is not None}
            async with world.client.post(path, json=given) as response:
                assert response.status == 200
                for _ in range(3):
                    assert await response.content.readline() == b": still here\n"
                    assert await response.content.readline() == b"\n"
                places.give_back("acme")
                events = (await response.text()).split("\n\n")
                assert any("data: {" in event for event in events)
            await places.take("acme")
        async with world.client.post("/v1/completions", json=body) as response:
            assert response.status == 200
            assert await response.content.readline() == b": still here\n"
            world.services.engine._writers.fail_all(RuntimeError("a bug"))  # type: ignore[attr-defined]
            places.give_back("acme")
            events = (await response.text()).strip().split("\n\n")
        assert json.loads(events[-1].removeprefix("data: "))["error"]["type"] == "server_error"


async def test_lines_are_kept_open_by_spaces_and_end_with_an_error_of_ollamas(
    writing_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader of lines parses each as JSON, so what keeps the connection open is a part of the next one."""
    monkeypatch.setattr(writers, "MOST_WRITTEN", 1)
    monkeypatch.setattr(write, "HEARTBEAT_S", 0.02)
    body = {"model": "acme.one", "prompt": PROMPT, "options": {"num_predict": 4}}
    async with server(writing_data) as world:
        await written(world, wanted(["a"], 1))
        places = world.services.engine._writers._places  # type: ignore[attr-defined]
        for fails in (False, True):
            await places.take("acme")
            async with world.client.post("/api/generate", json=body) as response:
                assert (response.status, response.content_type) == (200, "application/x-ndjson")
                assert await response.content.readexactly(3) == b"   "
                if fails:
                    world.services.engine._writers.fail_all(RuntimeError("a bug"))  # type: ignore[attr-defined]
                places.give_back("acme")
                *_, last = [json.loads(line) async for line in response.content]
            assert last.keys() == {"error"} if fails else last["done"]


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
