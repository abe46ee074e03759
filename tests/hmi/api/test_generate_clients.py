"""The Python clients and `hmi generate` with a real server and folder whose models write."""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import FormData

import hmi as product
from hmi.client import GeneratedText, TextPiece
from hmi.client.errors import DeadlineExceeded, InvalidInput, NotFound, Unavailable
from hmi.engine.writing.writer import Writer
from tests.hmi.labs.api_world import World, hmi
from tests.hmi.labs.writing_lab import PROMPT, server

CHAT = [{"role": "system", "content": "be good"}, {"role": "user", "content": PROMPT}]


@asynccontextmanager
async def served(data: Path) -> AsyncIterator[tuple[World, str]]:
    """A server on a folder, and its address."""
    async with server(data) as world:
        yield world, str(world.client.make_url("")).rstrip("/")


async def still(world: World) -> None:
    """Wait until nothing is written, and no page is held."""
    (writer,) = world.services.engine._loader.writers()  # type: ignore[attr-defined]
    assert isinstance(writer, Writer)
    while writer.drafts or writer.pages[0]:
        await asyncio.sleep(0.01)


async def test_openais_jobs_train_models_that_write_on_language_models(writing_data: Path) -> None:
    chats = [{"messages": [*CHAT, {"role": "assistant", "content": f"good {i % 3}"}]} for i in range(16)]
    form = FormData({"purpose": "fine-tune"})
    form.add_field("file", "\n".join(map(json.dumps, chats)).encode(), filename="chats.jsonl")
    quick = {"options": {"module": {"rank": 2}}, "hyperparameters": {"n_epochs": 1}}
    async with server(writing_data, job_workers=1) as world:
        _, key, _ = await world.call("POST", "/manage/tenants/acme/keys", {})
        world.key = key["key"]
        _, file, _ = await world.call("POST", "/v1/files", data=form)
        asked = {"training_file": file["id"], "suffix": "talk", "model": "tiny/news", **quick}
        status, job, _ = await world.call("POST", "/v1/fine_tuning/jobs", asked)
        assert status == 200, job
        view = await world.finish(job["id"])
        assert (view["state"], view["result"]["metrics"]["chats"]) == ("succeeded", 13), view
        _, job, _ = await world.call("GET", f"/v1/fine_tuning/jobs/{job['id']}")
        assert job["fine_tuned_model"] == "acme.talk"
        _, answer, _ = await world.call("POST", "/generate/acme.talk", {"messages": CHAT, "max_tokens": 4})
        assert answer["usage"]["written_tokens"] > 0
        more = {**asked, "model": "acme.talk", "suffix": "more", "options": {}}
        status, job, _ = await world.call("POST", "/v1/fine_tuning/jobs", more)
        assert status == 200, job
        assert (await world.finish(job["id"]))["state"] == "succeeded"
        other = {**asked, "task": "classification", "suffix": "other"}
        status, refused, _ = await world.call("POST", "/v1/fine_tuning/jobs", other)
        assert status == 400
        assert "is a language model, whose models write" in refused["error"]["message"]
        status, refused, _ = await world.call("POST", "/v1/fine_tuning/jobs", {**asked, "model": "tiny/none"})
        assert (status, refused["error"]["param"]) == (404, "model")


async def test_both_clients_write_what_the_server_writes(writing_data: Path) -> None:
    async with served(writing_data) as (world, url), product.AsyncClient(url) as client:
        ask = {"prompt": PROMPT, "max_tokens": 20, "temperature": 1.0, "seed": 5, "logprobs": 2}
        _, plain, _ = await world.call("POST", "/generate/acme.one", ask)
        whole = await client.generate("acme.one", PROMPT, max_tokens=20, temperature=1.0, seed=5, logprobs=2)
        assert (whole.text, whole.seed, whole.finish) == (plain["text"], 5, plain["finish"])
        assert [token.token for token in whole.logprobs or []] == [t["token"] for t in plain["logprobs"]]
        found = [p async for p in client.stream("acme.one", PROMPT, max_tokens=20, temperature=1.0, seed=5)]
        *pieces, end = found
        assert isinstance(end, GeneratedText)
        assert all(isinstance(piece, TextPiece) for piece in pieces)
        assert "".join(piece.text for piece in pieces) == end.text == whole.text

        def in_a_thread() -> tuple[GeneratedText, list[TextPiece | GeneratedText]]:
            with product.Client(url) as client:
                given = iter(client.stream("acme.two", messages=CHAT, max_tokens=9))
                return client.generate("acme.two", messages=iter(CHAT), max_tokens=9), list(given)

        chat, streamed = await asyncio.to_thread(in_a_thread)
        assert streamed[-1].text == chat.text
        assert chat.usage.written_tokens <= 9


async def test_a_reader_that_leaves_ends_the_text(writing_data: Path) -> None:
    async with served(writing_data) as (world, url), product.AsyncClient(url) as client:
        async with aclosing(client.stream("acme.one", PROMPT, max_tokens=450)) as coming:
            assert isinstance(await anext(coming), TextPiece)
        await still(world)

        def leaving() -> None:
            with product.Client(url) as client:
                for piece in client.stream("acme.one", PROMPT, max_tokens=450):
                    assert isinstance(piece, TextPiece)
                    break

        await asyncio.to_thread(leaving)
        await still(world)
        metrics = await (await world.client.get("/metrics")).text()
        assert not re.search(r'^hmi_writing_tokens_total{kind="read"} [1-9]', metrics, re.M)
        assert (await client.generate("acme.one", PROMPT, max_tokens=1)).usage.written_tokens == 1


async def test_errors_before_and_in_a_stream(writing_data: Path) -> None:
    async with served(writing_data) as (world, url), product.AsyncClient(url) as client:
        with pytest.raises(NotFound) as missing:
            await anext(client.stream("acme.none", PROMPT))
        assert missing.value.status == 404
        with pytest.raises(InvalidInput, match="do not fit") as long:
            await client.generate("acme.one", "a " * 600)
        assert long.value.details["field"] == "prompt"
        with pytest.raises(DeadlineExceeded):
            await client.generate("acme.one", PROMPT, max_tokens=400, deadline_ms=30)
        coming = client.stream("acme.one", PROMPT, max_tokens=450)
        assert isinstance(await anext(coming), TextPiece)
        (writer,) = world.services.engine._loader.writers()  # type: ignore[attr-defined]
        writer.fail_all(product.client.errors.Unavailable("the writer broke"))
        with pytest.raises(Unavailable, match="the writer broke") as broken:
            async for _ in coming:
                pass
        assert broken.value.status is None
        assert broken.value.request_id


async def test_the_command_on_a_server_and_on_a_folder(
    writing_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HMI_PRECISION", "fp32")
    given = ("--max-tokens", 12, "--temperature", 1, "--seed", 3, "--top-k", 50, "--top-p", 0.9)
    async with served(writing_data) as (_, url), product.AsyncClient(url) as client:

        async def command(*arguments: object, code: int = 0, text: str = "") -> str:
            monkeypatch.setattr("sys.stdin", io.StringIO(text))
            return await asyncio.to_thread(hmi, capsys, *arguments, code=code)

        at = ("--url", url)
        choice = {"max_tokens": 12, "temperature": 1.0, "seed": 3, "top_k": 50, "top_p": 0.9}
        whole = await client.generate("acme.one", PROMPT, **choice)  # type: ignore[arg-type]
        assert await command("generate", "acme.one", PROMPT, *given, *at) == f"{whole.text}\n"
        for prompt in ((), ("-",)):
            shown = await command("generate", "acme.one", *prompt, *given, *at, "--json", text=f"{PROMPT}\n")
            assert json.loads(shown)["text"] == whole.text
        chat = await client.generate("acme.one", messages=CHAT, max_tokens=12)
        asked = ("generate", "acme.one", PROMPT, "--system", "be good", "--max-tokens", 12)
        assert await command(*asked, *at) == f"{chat.text}\n"
        stop = whole.text[3:6]
        cut = await command("generate", "acme.one", PROMPT, *given, "--stop", "§", "--stop", stop, *at)
        assert cut == f"{whole.text[: whole.text.index(stop)]}\n"
        assert "check the name" in await command("generate", "acme.none", PROMPT, *at, code=1)
        assert "do not fit" in await command("generate", "acme.one", "a " * 600, *at, code=1)
        told = await command("infer", "acme.one", PROMPT, *at, code=1)
        assert "hmi generate acme.one" in told
        (tmp_path / "texts").write_text("a text\n")
        told = await command("infer", "acme.one", "--batch", tmp_path / "texts", *at, code=1)
        assert "hmi generate acme.one" in told
    folder = ("--data", writing_data)
    local = json.loads(
        await asyncio.to_thread(hmi, capsys, "generate", "acme.one", PROMPT, *given, *folder, "--json")
    )
    assert (local["text"], local["finish"]) == (whole.text, whole.finish)
    assert await asyncio.to_thread(hmi, capsys, *asked, *folder) == f"{chat.text}\n"
    assert "hmi generate acme.one" in await asyncio.to_thread(
        hmi, capsys, "infer", "acme.one", "a", *folder, code=1
    )
