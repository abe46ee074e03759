"""Texts that models write, over HTTP: against full recomputation, streamed, in company, and refused."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
import time
from pathlib import Path
from typing import Any

import pytest

from hmi.cli.framework.endings import lines
from hmi.core import ModelId
from hmi.engine.writing.draft import Draft
from hmi.engine.writing.request import WriteRequest
from hmi.engine.writing.right_of_way import RightOfWay
from hmi.engine.writing.writer import Deliver, Spent, Writer
from hmi.execution.cuda.decoder import CudaDecoder
from hmi.execution.cuda.twin import Twin
from hmi.execution.cuda.ways import Ways
from hmi.execution.decoding import choose
from hmi.execution.decoding.paged import LEAST_PAGES, page_bytes
from hmi.manager import Manager
from hmi.model.sources.generative_root import UpperDecoder, load_generative_root
from hmi.model.text.generative import GenerativeTokenizer
from tests.hmi.labs.api_world import World
from tests.hmi.labs.writing_lab import PROMPT, Reference, publish, server, words, written

MODELS = ("acme.one", "acme.two", "beta.one")


def tokenizer_of(manager: Manager) -> GenerativeTokenizer:
    version = manager.registry.root("tiny").version
    return load_generative_root(manager.settings.data / "roots" / "tiny" / version).tokenizer


async def stream(world: World, model: str, body: dict[str, Any]) -> list[tuple[str, Any]]:
    """The events of a streamed text."""
    async with world.client.post(f"/generate/{model}", json={**body, "stream": True}) as response:
        assert response.status == 200, await response.text()
        assert response.content_type == "text/event-stream"
        found = (await response.text()).strip().split("\n\n")
    events = [event.split("\n") for event in found]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in events]


@pytest.fixture(params=["cpu", "twin"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where texts are written: on the CPU, or on the twin of a device."""

    def on_device(upper: UpperDecoder, wanted: str, memory: int, *_: object) -> CudaDecoder:
        pages = max(LEAST_PAGES, memory // page_bytes(upper, 4))
        return CudaDecoder(upper, pages, wanted, Twin(3), ways=Ways("groups"))

    if request.param == "twin":
        monkeypatch.setattr(choose, "_on_device", on_device)
    return str(request.param)


async def test_texts_are_those_of_full_recomputation(writing_data: Path, device: str) -> None:
    async with server(writing_data) as world:
        manager = world.services.manager
        reference, tokenizer = Reference(manager), tokenizer_of(manager)
        chat = [{"role": "user", "content": PROMPT}]
        for model in MODELS:
            version = manager.registry.model(ModelId.parse(model)).live
            for given in ({"prompt": PROMPT}, {"messages": chat}):
                draft = await written(world, WriteRequest(ModelId.parse(model), *given.values(), most=24))
                body = {**given, "max_tokens": 24, "logprobs": 1}
                status, answer, _ = await world.call("POST", f"/generate/{model}", body)
                assert status == 200, answer
                text = PROMPT if "prompt" in given else tokenizer.chat(chat)
                (encoded,) = tokenizer.encode([text], 1000, specials="messages" in given)
                ids = draft.answer.written
                assert draft.answer.prompt == encoded.ids
                reference.check(version, encoded.ids, ids)
                assert answer["text"] == tokenizer.decode([i for i in ids if i not in tokenizer.ends])
                assert answer["usage"]["prompt_tokens"] == len(encoded.ids)
                assert answer["usage"]["written_tokens"] == len(answer["logprobs"]) == len(ids)
                assert (answer["model"], answer["version"], answer["seed"]) == (model, 1, None)
                assert sum(answer["plot"].values()) >= len(encoded.ids) - 1
                events = await stream(world, model, body)
                assert [name for name, _ in events] == ["text"] * (len(events) - 1) + ["end"]
                assert "".join(data["text"] for _, data in events[:-1]) == answer["text"]
                end = events[-1][1]
                assert (end["text"], end["finish"]) == (answer["text"], answer["finish"])
                assert end["usage"]["cached_tokens"] == 16 * ((len(encoded.ids) - 1) // 16)


@pytest.mark.parametrize("device", ["cpu", pytest.param("twin", marks=pytest.mark.slow)], indirect=True)
async def test_a_seed_gives_its_text_in_any_company(writing_data: Path, device: str) -> None:
    """Forty texts of three models, alone and all at once, with few pages, so that some are set back."""
    asks = [
        {"prompt": prompt, "max_tokens": 30, "temperature": 1.0, "top_p": 0.95, "seed": i}
        for i, prompt in enumerate(words(7, 40).splitlines())
    ]
    async with server(writing_data) as world:
        alone = [await world.call("POST", f"/generate/{MODELS[i % 3]}", ask) for i, ask in enumerate(asks)]
        again = [await world.call("POST", f"/generate/{MODELS[i % 3]}", ask) for i, ask in enumerate(asks)]
        assert world.services.engine.ready()
    async with server(writing_data, writing_bytes=1) as world:
        calls = [world.call("POST", f"/generate/{MODELS[i % 3]}", ask) for i, ask in enumerate(asks)]
        together = await asyncio.gather(*calls)
        _, metrics = 0, await (await world.client.get("/metrics")).text()
    assert {status for status, _, _ in together} == {200}
    texts = [answer["text"] for _, answer, _ in alone]
    assert len(set(texts)) > 35
    assert [answer["text"] for _, answer, _ in again] == texts
    assert [answer["text"] for _, answer, _ in together] == texts
    assert [answer["seed"] for _, answer, _ in together] == list(range(40))
    assert float(re.search(r"^hmi_writing_set_back_total (\S+)", metrics, re.M)[1]) > 0  # type: ignore[index]
    assert 'hmi_writing_tokens_total{kind="written"}' in metrics
    assert 'hmi_writing_pages{state="held"} 0.0' in metrics


async def test_stop_strings_and_lengths(writing_data: Path) -> None:
    async with server(writing_data) as world:
        ask = {"prompt": PROMPT, "max_tokens": 40, "temperature": 1.5, "seed": 1}
        _, whole, _ = await world.call("POST", "/generate/acme.one", ask)
        stop = whole["text"][20:24]
        status, cut, _ = await world.call("POST", "/generate/acme.one", {**ask, "stop": ["never", stop]})
        assert (status, cut["finish"]) == (200, "stop")
        assert cut["text"] == whole["text"][: whole["text"].index(stop)]
        assert cut["usage"]["written_tokens"] < whole["usage"]["written_tokens"]
        events = await stream(world, "acme.one", {**ask, "stop": stop})
        assert "".join(data["text"] for _, data in events[:-1]) == cut["text"]
        _, short, _ = await world.call("POST", "/generate/acme.one", {**ask, "max_tokens": 5})
        assert (short["finish"], short["usage"]["written_tokens"]) == ("length", 5)
        assert whole["text"].startswith(short["text"])


async def test_what_cannot_be_written_is_refused(writing_data: Path) -> None:
    async with server(writing_data, max_text_bytes=5000) as world:
        keys = {name: await _key(world, name) for name in ("acme", "beta")}

        async def refused(body: Any, model: str = "acme.one", who: str = "acme") -> tuple[int, str, str]:
            status, answer, _ = await world.call("POST", f"/generate/{model}", body, key=keys[who])
            return status, answer["error"]["message"], answer["error"]["details"].get("field", "")

        assert (await refused({}))[0] == 422
        both = {"prompt": "a", "messages": [{"role": "user", "content": "b"}]}
        assert "give one of them" in (await refused(both))[1]
        status, message, field = await refused({"prompt": "a " * 600})
        assert (status, field) == (422, "prompt")
        assert re.search(r"prompt has \d+ tokens.* do not fit into the 512 that acme.one", message)
        status, message, field = await refused({"prompt": "a", "max_tokens": 511})
        assert (status, field, "511 to write" in message) == (422, "max_tokens", True)
        assert (await refused({"prompt": "a" * 5001}))[0] == 413
        assert (await refused({"prompt": "a", "top_p": 0}))[2] == "top_p"
        assert (await refused({"prompt": "a", "stop": ["x"] * 17}))[2].startswith("stop")
        assert (await refused({"prompt": "a", "stop": ["x" * 201]}))[2] == "stop[0]"
        assert "give a text, or a list" in (await refused({"prompt": "a", "stop": 5}))[1]
        long = {"prompt": "a", "max_tokens": 1, "stop": "a text of more than 16 characters"}
        assert (await world.call("POST", "/generate/acme.one", long, key=keys["acme"]))[0] == 200
        assert (await refused({"prompt": "a"}, who="beta"))[0] == 404
        assert (await refused({"prompt": "a"}, "acme.none"))[0] == 404
        infer = await world.call("POST", "/infer/acme.one", {"inputs": "a"}, key=keys["acme"])
        assert (infer[0], "POST /generate/acme.one" in infer[1]["error"]["message"]) == (422, True)
        late = await refused({"prompt": PROMPT, "max_tokens": 400, "deadline_ms": 30})
        assert late[0] == 504
        assert (await world.call("POST", "/generate/acme.one", {"prompt": "a"}, key=keys["acme"]))[0] == 200


async def _key(world: World, name: str) -> str:
    return str((await world.call("POST", f"/manage/tenants/{name}/keys", {"scopes": ["infer"]}))[1]["key"])


async def test_one_that_leaves_frees_its_pages(writing_data: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with server(writing_data) as world:
        await world.call("POST", "/generate/acme.one", {"prompt": "a", "max_tokens": 1})
        (writer,) = world.services.engine._loader.writers()  # type: ignore[attr-defined]
        body = {"prompt": PROMPT, "max_tokens": 450, "stream": True}
        responses = [await world.client.post("/generate/acme.one", json=body) for _ in range(3)]
        for response in responses:
            assert await response.content.readline() == b"event: text\n"
        assert writer.pages[0] > 0
        for response in responses:
            response.close()
        while writer.drafts or writer.pages[0]:
            await asyncio.sleep(0.01)
        assert (await world.call("POST", "/generate/acme.one", {"prompt": "a"}))[0] == 200
        kept = writer.pages[1]
        await asyncio.to_thread(world.services.manager.delete_model, "acme.one")
        while writer.pages[1] == kept:
            await asyncio.sleep(0.01)
        assert writer.pages == (0, 0)
        assert (await world.call("POST", "/generate/acme.one", {"prompt": "a"}))[0] == 404
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_each_text_is_its_own_versions_while_versions_change(writing_data: Path) -> None:
    """Texts of three models, while versions are published and models are deleted and made again."""
    async with server(writing_data) as world:
        manager = world.services.manager
        reference = Reference(manager)
        versions = {m: {1: manager.registry.model(ModelId.parse(m)).live} for m in MODELS}
        drafts: list[Draft] = []

        async def ask(number: int) -> None:
            model = ModelId.parse(MODELS[number % 3])
            prompt = words(number, 1)
            drafts.append(await written(world, WriteRequest(model, prompt, most=1 + number % 12)))

        async def change() -> None:
            for seed in range(10, 20):
                model = MODELS[seed % 3]
                made = await asyncio.to_thread(publish, manager, model, seed)
                versions[model][made.version] = made
                await asyncio.sleep(0.05)

        changing = asyncio.create_task(change())
        for begin in range(0, 300, 20):
            await asyncio.gather(*(ask(begin + i) for i in range(20)))
        await changing
        await asyncio.gather(*(ask(i) for i in range(9)))
        assert len({(str(d.model), d.version.version) for d in drafts}) > 6
        for draft in drafts:
            assert draft.version == versions[str(draft.model)][draft.version.version]
        for draft in drafts[::4]:
            reference.check(draft.version, draft.answer.prompt, draft.answer.written)
        newest = {str(d.model): d.version.version for d in drafts[-9:]}
        assert newest == {model: max(found) for model, found in versions.items()}


async def test_a_module_goes_out_to_peft_and_comes_back(writing_data: Path, tmp_path: Path) -> None:
    async with server(writing_data, job_workers=1) as world:
        status, made, _ = await world.call("GET", "/manage/models/acme.one/module")
        assert (status, made["format"], made["left_out"]) == (200, "peft 0.17", [])
        config, adapter = (base64.b64decode(made["files"][n]) for n in sorted(made["files"]))
        assert json.loads(config)["layers_to_transform"] == [2, 3]
        spec = {"model": "beta.copy", "domain": "tiny/news", "task": "generation"}
        files = {"adapter_config": config, "adapter": adapter}
        status, job, _ = await world.upload("/manage/models/import", spec, files)
        assert status == 202, job
        ended = await world.finish(job["job"])
        assert ended["state"] == "succeeded", ended
        assert lines(ended)[-1] == "next: hmi generate beta.copy PROMPT, or hmi model report beta.copy"
        ask = {"prompt": PROMPT, "max_tokens": 20}
        texts = [
            (await world.call("POST", f"/generate/{m}", ask))[1]["text"] for m in ("acme.one", "beta.copy")
        ]
        assert texts[0] == texts[1] != ""
        _, other, _ = await world.call("POST", "/generate/acme.two", ask)
        assert other["text"] != texts[0]
        bad = json.dumps({**json.loads(config), "use_dora": True}).encode()
        spec["model"] = "beta.bad"
        status, refused, _ = await world.upload(
            "/manage/models/import", spec, files | {"adapter_config": bad}
        )
        assert (status, refused["error"]["details"]["field"]) == (422, "use_dora")


async def test_a_module_of_peft_is_trained_further(writing_data: Path) -> None:
    async with server(writing_data, job_workers=1) as world:
        _, made, _ = await world.call("GET", "/manage/models/acme.one/module")
        config, adapter = (base64.b64decode(made["files"][n]) for n in sorted(made["files"]))
        spec = {"model": "beta.further", "domain": "tiny/news", "options": {"epochs": 1}}
        rows = "\n".join(json.dumps({"prompt": f"film {i}", "completion": " rises"}) for i in range(12))
        files = {"adapter_config": config, "adapter": adapter, "data": rows.encode()}
        status, job, _ = await world.upload("/manage/models/import", spec, files)
        assert status == 202, job
        ended = await world.finish(job["job"])
        assert ended["state"] == "succeeded", ended
        assert (ended["result"]["task"], ended["result"]["metrics"]["epochs_run"]) == ("generation", 1)


async def test_an_empty_prompt_is_begun(writing_data: Path) -> None:
    async with server(writing_data) as world:
        status, answer, _ = await world.call("POST", "/generate/acme.one", {"prompt": "", "max_tokens": 1})
        assert (status, answer["usage"]["prompt_tokens"]) == (200, 1)


async def test_a_deadline_that_passes_in_a_stream_is_an_event_of_it(
    writing_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps are slowed, so that the text cannot be whole before the deadline."""
    step = Writer.step

    def slow_step(writer: Writer, deliver: Deliver, way: RightOfWay) -> Spent:
        time.sleep(0.01)
        return step(writer, deliver, way)

    async with server(writing_data) as world:
        await world.call("POST", "/generate/acme.one", {"prompt": "a", "max_tokens": 1})
        monkeypatch.setattr(Writer, "step", slow_step)
        ask = {"prompt": PROMPT, "max_tokens": 480, "deadline_ms": 2000}
        events = await stream(world, "acme.one", ask)
        assert events[0][0] == "text"
        assert (events[-1][0], events[-1][1]["error"]["kind"]) == ("error", "deadline_exceeded")
