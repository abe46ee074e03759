"""Texts as they end, in time or before: what they held is free, and what they cost is counted."""

from __future__ import annotations

import asyncio
import gc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hmi.api.access.caller import ADMINISTRATOR
from hmi.config import Settings
from hmi.core import ModelId
from hmi.engine.admit import bundles
from hmi.engine.writing import writers
from hmi.engine.writing.draft import Draft
from hmi.engine.writing.request import WriteRequest, WrittenText
from hmi.engine.writing.writer import Writer
from hmi.engine.writing.writers import Writers
from hmi.errors import Damaged, Unavailable
from hmi.execution.decoding.guesses import Guesses
from hmi.execution.decoding.plain import PlainDecoder
from hmi.execution.decoding.writing import Answer
from hmi.manager import Manager
from hmi.model.tenant.modules import LowRankLayer, TenantModule
from hmi.model.text.sampling import Sampling
from plot_store import Reader, Store
from tests.hmi.labs.api_world import World
from tests.hmi.labs.writing_lab import PROMPT, publish, server, writing, written
from tests.pieces import piece

ONE, TWO, BETA = (ModelId.parse(name) for name in ("acme.one", "acme.two", "beta.one"))


def writers_of(world: World) -> Writers:
    found = world.services.engine._writers  # type: ignore[attr-defined]
    assert isinstance(found, Writers)
    return found


def writer_of(world: World) -> Writer:
    (found,) = writers_of(world)._loader.writers()
    return found


def used(world: World, tenant: str) -> tuple[int, int, int]:
    """The requests, inputs and tokens that a tenant is counted."""
    totals = world.services.monitoring.metrics.usage.of(tenant)
    return int(totals.requests), int(totals.inputs), int(totals.tokens)


async def still(world: World) -> None:
    writer = writer_of(world)
    while writer.busy or writer.pages[0]:
        await asyncio.sleep(0.01)


async def test_readers_that_go_at_once_leave_nothing(writing_data: Path) -> None:
    async with server(writing_data) as world:
        for _ in range(20):
            async with writing(world, WriteRequest(ONE, PROMPT, most=400)):
                pass
        await still(world)
        writer = writer_of(world)
        assert len(writer._writing) == len(writer._written) == 0


async def test_damage_that_a_last_look_up_finds_fails_its_own_text_alone(
    writing_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up = Draft._looked_up

    def damaged(draft: Draft) -> dict[str, int]:
        if draft.model.tenant == "acme":
            raise Damaged("a row is damaged: restore it")
        return looked_up(draft)

    monkeypatch.setattr(Draft, "_looked_up", damaged)
    async with server(writing_data) as world:
        ask = {"prompt": PROMPT, "max_tokens": 30}
        models = ("acme.one", "beta.one", "acme.two", "beta.one")
        answers = await asyncio.gather(*(world.call("POST", f"/generate/{m}", ask) for m in models))
        assert [status for status, _, _ in answers] == [500, 200, 500, 200]
        assert "a row is damaged" in answers[0][1]["error"]["message"]


async def test_a_look_up_that_fails_fails_the_texts_that_need_it(
    writing_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of texts that are looked up together, the ones without the damaged n-grams are written."""
    lookup, whole = Reader.lookup, 0

    def damaged(reader: Reader, tokens: Any, offsets: Any, **given: Any) -> Any:
        nonlocal whole
        if (np.asarray(tokens) == bad).any():
            whole += len(offsets) > 2
            raise Damaged("a row is damaged: restore it")
        return lookup(reader, tokens, offsets, **given)

    async with server(writing_data) as world:
        await written(world, WriteRequest(BETA, PROMPT, most=1))
        (encoded,) = writer_of(world).root.tokenizer.encode(["zebra"], 9)
        bad = encoded.ids[-1]
        monkeypatch.setattr(Reader, "lookup", damaged)
        long = "good film " * 40
        drafts = [WriteRequest(BETA, long + end, most=5) for end in ("", "zebra", "plot", "zebra plot")]
        found = await asyncio.gather(*(written(world, wants) for wants in drafts), return_exceptions=True)
        assert [isinstance(each, Damaged) for each in found] == [False, True, False, True]
        assert whole, "some were looked up together"
        monkeypatch.undo()
        again = await asyncio.gather(*(written(world, wants) for wants in drafts))
        assert [draft.answer.ended for draft in again] == ["length"] * 4, "nothing damaged was kept"


@pytest.mark.parametrize("way", ["compiled", "torch"])
async def test_a_look_up_that_fails_of_a_guess_alone_fails_no_text(
    writing_data: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Each guess begins with what will be written, and goes on with what is damaged."""
    if way == "torch":  # which masks keys by a sum, so one that is no number would spoil all rows of a part
        monkeypatch.setattr(bundles, "step_executor", lambda upper, *_: PlainDecoder(upper, 64))
    lookup, wants = Reader.lookup, WriteRequest(BETA, PROMPT, most=20)
    async with server(writing_data, stages="none") as world:
        plain = (await written(world, wants)).answer
        (encoded,) = writer_of(world).root.tokenizer.encode(["zebra"], 9)
    bad, failed = encoded.ids[-1], list[int]()

    def damaged(reader: Reader, tokens: Any, offsets: Any, **given: Any) -> Any:
        if (np.asarray(tokens) == bad).any():
            failed.append(bad)
            raise Damaged("a row is damaged: restore it")
        return lookup(reader, tokens, offsets, **given)

    def guess(answer: Answer, most: int, least: float) -> list[int]:
        answer._guesses = Guesses(0)
        return [*plain.ids[len(answer.ids) : -2][:1], bad] if len(answer.ids) < len(plain.ids) - 2 else []

    monkeypatch.setattr(Reader, "lookup", damaged)
    monkeypatch.setattr(Answer, "guess", guess)
    async with server(writing_data) as world:
        draft = await written(world, wants)
        assert (draft.answer.ids, draft.answer.ended) == (plain.ids, "length")
        assert len(failed) > 9
        assert draft.error is None


@pytest.mark.parametrize("way", ["compiled", "torch"])
@pytest.mark.parametrize("wrong", ["narrow", "one row", "layer"])
async def test_a_module_that_does_not_fit_its_root_fails_its_own_texts_alone(
    writing_data: Path, monkeypatch: pytest.MonkeyPatch, way: str, wrong: str
) -> None:
    """Such a module comes with a whole file, from a backup of another root. In torch the second of these
    would be added to every number of a row."""
    if way == "torch":
        monkeypatch.setattr(bundles, "step_executor", lambda upper, *_: PlainDecoder(upper, 64))
    site, size_in, size_out = {
        "narrow": ("0-q", 96, 128),
        "one row": ("0-q", 128, 1),
        "layer": ("9-q", 128, 128),
    }[wrong]
    change = LowRankLayer(torch.randn(4, size_in), torch.randn(size_out, 4))
    manager = Manager(Settings(data=writing_data, job_workers=0))
    publish(manager, "acme.two", 9, TenantModule({site: change}))
    manager.close()
    async with server(writing_data) as world:
        alone = (await written(world, WriteRequest(BETA, PROMPT, most=60))).answer.ids
        async with writing(world, WriteRequest(BETA, PROMPT, most=60)) as beside:
            pieces = aiter(beside)
            await anext(pieces)
            ask = {"prompt": PROMPT, "max_tokens": 9}
            status, answer, _ = await world.call("POST", "/generate/acme.two", ask)
            assert beside.outcome is None, "it is written meanwhile"
            async for _ in pieces:
                pass
        assert (beside.answer.ids, beside.answer.ended) == (alone, "length")
        assert (status, answer["error"]["kind"]) == (500, "damaged")
        assert "does not fit its root" in answer["error"]["message"]
        status, _, _ = await world.call("POST", "/generate/acme.one", ask)
        assert status == 200, "the tenant's other models write"


async def test_a_step_of_several_tokens_ends_a_text_at_its_stop_string_and_counts_no_more(
    writing_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text, its tokens, its scores and what is counted are those without guesses."""
    wants = WriteRequest(ONE, PROMPT, most=40, sampling=Sampling(logprobs=2))
    async with server(writing_data, stages="none") as world:
        whole = await written(world, wants)
        assert isinstance(whole.outcome, WrittenText)
        stops = (whole.outcome.text[30:34],)
        plain, before = await written(world, replace(wants, stops=stops)), used(world, "acme")

    def guess(answer: Answer, most: int, least: float) -> list[int]:
        answer._guesses = Guesses(0)
        return whole.answer.ids[len(answer.ids) : -1][:7]

    monkeypatch.setattr(Answer, "guess", guess)
    async with server(writing_data) as world:
        again = await written(world, wants)
        draft = await written(world, replace(wants, stops=stops))
        assert used(world, "acme") == before
    for mine, theirs in ((again, whole), (draft, plain)):
        assert isinstance(mine.outcome, WrittenText)
        assert isinstance(theirs.outcome, WrittenText)
        same = replace(mine.outcome, timing=theirs.outcome.timing, cached_tokens=theirs.outcome.cached_tokens)
        assert same == theirs.outcome
    assert draft.outcome.finish == "stop"
    assert len(draft.answer.written) > draft.count == plain.count, "the step went on"


async def test_damage_is_told_by_its_domain_and_the_log_names_the_file(
    writing_data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At a look-up, and where the PLOT is opened."""
    with Store.open(writing_data / "plots") as store:
        pieces = [piece(store, s.name) for s in store.version("tiny/news").segments]

    def flip(kind: str, at: slice) -> list[str]:
        chosen = [each for each in pieces if each.name.endswith(kind)]
        for each in chosen:
            changed = bytearray(each.read_bytes())
            changed[at] = bytes(byte ^ 0x15 for byte in changed[at])
            each.write_bytes(changed)
        return [each.name for each in chosen]

    told = "the PLOT of tiny/news, which version 1 of model acme.one reads, is damaged: restore it"
    files = flip("rows", slice(4096, -64))
    for damaged in (lambda: files, lambda: flip("index", slice(4096, 4200))):
        names = damaged()
        caplog.clear()
        async with server(writing_data) as world:
            ask = {"prompt": PROMPT, "max_tokens": 3}
            status, answer, _ = await world.call("POST", "/generate/acme.one", ask)
        assert status == 500
        assert answer["error"]["message"].startswith(told)
        assert not any(name[:16] in answer["error"]["message"] for name in names)
        logged = [record.getMessage() for record in caplog.records if record.name == "hmi.engine"]
        assert any(name in line for name in names for line in logged)


async def test_a_stop_without_drain_ends_what_is_written_and_what_waits(
    writing_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "MOST_WRITTEN", 2)
    async with server(writing_data) as world:
        await written(world, WriteRequest(ONE, PROMPT, most=1))
        wants = [WriteRequest(model, PROMPT, most=450) for model in (ONE, BETA) * 4]
        texts = [asyncio.create_task(written(world, each)) for each in wants]
        while not writers_of(world)._places.waiting:
            await asyncio.sleep(0)
        late = asyncio.create_task(written(world, WriteRequest(TWO, PROMPT, most=450)))
        await asyncio.sleep(0)
        await world.services.engine.stop(drain=False)
        found = await asyncio.gather(*texts, late, return_exceptions=True)
        assert {type(each) for each in found} == {Unavailable}
        assert writers_of(world)._places.taken == writers_of(world)._room.taken == 0


async def test_a_tenant_that_has_all_places_holds_up_no_other(
    writing_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "MOST_WRITTEN", 4)
    async with server(writing_data) as world:
        wants = WriteRequest(ONE, PROMPT, most=450)
        texts = [asyncio.create_task(written(world, wants)) for _ in range(7)]
        while writers_of(world)._places.waiting < 3:
            await asyncio.sleep(0)
        await asyncio.gather(*(written(world, WriteRequest(BETA, PROMPT, most=3)) for _ in range(2)))
        assert not any(text.done() for text in texts), "none of the first tenant's has ended yet"
        await asyncio.gather(*texts)


async def test_a_whole_text_holds_nothing_while_it_waits_for_its_reader(
    writing_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "MOST_WRITTEN", 1)
    async with server(writing_data) as world, writing(world, WriteRequest(ONE, "a", most=3)):
        await written(world, WriteRequest(BETA, PROMPT, most=3))
        mine = writers_of(world)
        assert mine._places.taken == mine._room.taken == 0
        requests, inputs, tokens = used(world, "acme")
        assert (requests, inputs, tokens > 3) == (0, 1, True)
    assert used(world, "acme") == (1, 1, tokens)


async def test_what_was_written_for_a_reader_that_has_gone_is_counted(writing_data: Path) -> None:
    async with server(writing_data) as world:
        limits = {"limits": {"tokens_per_s": 100.0}}
        status, answer, _ = await world.call("PATCH", "/manage/tenants/acme", limits)
        assert status == 200, answer
        inference = world.services.inference
        for bucket in inference.rates.buckets.values():
            bucket._clock = lambda: 0.0  # nothing flows in, however slow the machine

        async def read_some() -> None:
            async with inference.write([WriteRequest(ONE, PROMPT, most=400)], ADMINISTRATOR) as pieces:
                async for _ in pieces:
                    if sum(cost.tokens for cost in pieces.costs) > 50:
                        raise ConnectionResetError

        with pytest.raises(ConnectionResetError):
            await read_some()
        (left,) = (state.left for state in inference.rates.states("acme") if state.quota == "tokens_per_s")
        requests, inputs, tokens = used(world, "acme")
        assert (requests, inputs) == (1, 0)
        assert 50 < tokens < 400
        assert 1000 - tokens <= left < 1000, "the rate is charged what was written"


async def test_a_text_that_fails_costs_nothing(writing_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with server(writing_data) as world:
        monkeypatch.setattr(Reader, "lookup", None)
        body = {"prompt": PROMPT, "max_tokens": 4, "stream": True}
        assert (await world.call("POST", "/generate/acme.one", body))[0] == 500
        assert used(world, "acme") == (0, 0, 0)


async def test_nothing_is_kept_of_a_model_that_was_deleted_while_its_text_waited(
    writing_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "MOST_WRITTEN", 1)
    async with server(writing_data) as world:
        await written(world, WriteRequest(TWO, PROMPT * 3, most=1))
        async with writing(world, WriteRequest(ONE, PROMPT, most=480)):
            waits = asyncio.create_task(written(world, WriteRequest(BETA, PROMPT * 3, most=40)))
            while not writers_of(world)._places.waiting:
                await asyncio.sleep(0)
            await asyncio.to_thread(world.services.manager.delete_model, "beta.one")
        draft = await waits
        assert draft.answer.ended in ("end", "length"), "a text that was accepted is written"
        await still(world)
        owners = {node.owner for node in writer_of(world)._writing.arena._nodes.values()}
        assert draft.answer.owner not in owners
        assert owners, "a text of another model's was kept"


async def test_what_texts_held_is_collected(writing_data: Path) -> None:
    async with server(writing_data) as world:
        drafts = [await written(world, WriteRequest(model, PROMPT, most=9)) for model in (ONE, TWO, BETA)]
        left = [weakref.ref(draft) for draft in drafts]
        drafts.clear()
        for _ in range(1000):  # the compute thread may hold the last one yet
            gc.collect()
            if not any(each() for each in left):
                break
            await asyncio.sleep(0.01)
        assert [each() for each in left] == [None] * 3


async def test_a_users_prompt_is_a_text_where_the_root_has_no_chat_template(writing_data: Path) -> None:
    """As Ollama has it for a model whose template is the prompt alone."""
    body = {"model": "acme.one", "prompt": f"{PROMPT} <|end|>", "stream": False}
    body["options"] = {"temperature": 0, "num_predict": 9}
    async with server(writing_data) as world:
        ask = {"prompt": body["prompt"], "max_tokens": 9}
        _, plain, _ = await world.call("POST", "/generate/acme.one", ask)
        _, refused, _ = await world.call("POST", "/api/generate", body)
        assert "prompt holds the name of a special token" in refused["error"]
        writer_of(world).root.tokenizer.template = None
        status, answer, _ = await world.call("POST", "/api/generate", body)
        assert (status, answer["response"]) == (200, plain["text"])
        chat = {"model": "acme.one", "messages": [{"role": "user", "content": PROMPT}]}
        status, answer, _ = await world.call("POST", "/api/chat", chat)
        assert (status, answer) == (400, {"error": "the root has no chat template: give a prompt instead"})
