"""In the engine, no tenant breaks, starves or outlives another's requests."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from hmi.core import ModelId
from hmi.engine import TextRequest, TextResult
from hmi.engine.admit.bundles import Bundle
from hmi.engine.admit.cache import IdleCache
from hmi.engine.run.running import Cut
from hmi.engine.schedule.pace import Pace
from hmi.engine.schedule.queue import BatchQueue
from hmi.engine.texts.item import Piece, work_in, work_of
from hmi.errors import Damaged, DeadlineExceeded, InvalidInput, QuotaExceeded, Unavailable
from hmi.execution.packed import PackedExecutor
from hmi.model.text.batching import Encoded
from hmi.model.text.tokenizer import Text, Tokenizer
from hmi.stages.planner import Candidate, Plan
from plot_store import Reader
from tests.e2e.conftest import Home
from tests.e2e.engine.hall import Kept, admitting, items, loader_of, take

MOOD, TAGS, OTHER = ModelId("acme", "mood"), ModelId("globex", "tags"), ModelId("globex", "mood")


async def test_a_damaged_module_fails_its_own_tenant_only(home: Home) -> None:
    artefact = home.manager.model("globex.mood").live.artefact
    path = home.settings.data / "adapters" / f"{artefact}.safetensors"
    intact = path.read_bytes()
    engine = home.engine()
    await engine.start()
    calls = [engine.infer([TextRequest(m, t)]) for t in home.covered[:6] for m in (MOOD, OTHER)]
    try:
        path.write_bytes(intact[:-8] + b"\0" * 8)
        results = await asyncio.gather(*calls, return_exceptions=True)
    finally:
        path.write_bytes(intact)
    assert all(isinstance(r, list) for r in results[::2]), "a neighbour's damage reached this tenant"
    assert all(isinstance(r, Damaged) for r in results[1::2])
    (again,) = await engine.infer([TextRequest(OTHER, home.covered[0])])
    assert again.label, "a repaired module must answer again without a restart"
    await engine.stop()


def spoilt(home: Home, bundle: Bundle, what: str) -> Bundle:
    """The bundle of globex.mood with one part made wrong."""
    if what == "rows":
        return replace(bundle, reader=cast(Reader, SimpleNamespace(lookup=None)))
    state = {**home.state("globex.mood")}
    for name in [n for n in state if n.startswith(what)]:
        state[name] = torch.full_like(state[name], torch.nan)
    if what == "size":
        state["head.out.weight"] = state["head.out.weight"][:, :5]
    artefact = "0" * 64 if what == "file" else home.manager.adapters.put(state)[0]
    return replace(bundle, version=bundle.version.model_copy(update={"artefact": artefact}))


@pytest.mark.parametrize(
    ("what", "error"),
    [("head", Damaged), ("module", Damaged), ("file", Damaged), ("rows", TypeError), ("size", RuntimeError)],
)
async def test_what_is_wrong_with_some_texts_of_a_batch_does_not_make_the_others_run_again(
    home: Home, what: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    run = PackedExecutor.run

    def counted(self: PackedExecutor, *given: Any) -> Any:
        ran.append(1)
        return run(self, *given)

    monkeypatch.setattr(PackedExecutor, "run", counted)
    engine = home.engine()
    await engine.start()
    sound, bad = await items(home, MOOD, home.covered[:6]), await items(home, OTHER, home.covered[6:9])
    for item in bad:
        item.bundle = spoilt(home, item.bundle, what)
    pieces = [Piece(item, 0) for item in (*sound[:3], *bad, *sound[3:])]
    plan = Plan(Candidate(0.0, 0.0, "acme", sound[0].key, 1))
    await engine._serve(Cut(pieces, plan, 1.0))
    assert len(ran) == 1
    errors = [cast(Kept, item.sink).errors for item in bad]
    assert all(isinstance(mine, error) for (mine,) in errors)
    assert len({id(mine) for (mine,) in errors}) == len(bad), "an object of its own for each"
    for item in sound:
        (alone,) = await engine.infer([item.request])
        (got,) = cast(Kept, item.sink).results
        assert (got.label, got.score) == (alone.label, pytest.approx(alone.score, abs=1e-5))
    await engine.stop()


async def test_a_deadline_ends_the_wait(home: Home) -> None:
    engine = home.engine()
    await engine.start()
    flood = asyncio.create_task(engine.infer([TextRequest(MOOD, t) for t in home.covered * 20]))
    await asyncio.sleep(0.05)
    begun = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        await engine.infer([TextRequest(MOOD, t, deadline=begun + 0.001) for t in home.covered])
    flood.cancel()
    await asyncio.gather(flood, return_exceptions=True)
    await engine.stop()


def queue_of(capacity: int) -> BatchQueue:
    """A queue whose batches are bounded by tokens alone."""
    return BatchQueue(capacity, Pace())


async def test_tenants_and_groups_take_turns(home: Home) -> None:
    flood = await items(home, MOOD, home.covered * 10, exact=True)
    late = await items(home, OTHER, home.covered[:2])
    queue = queue_of(1_000_000)
    queue.put(flood)
    take(queue, 200)
    queue.put(late)
    batch = take(queue, 200)
    assert [p.item for p in batch] == late, "who was given nothing goes first, and with it its group"
    queue = queue_of(1_000_000)
    flood = await items(home, MOOD, home.covered * 10)
    queue.put(flood)
    queue.put(await items(home, OTHER, home.covered * 10))
    given: Counter[str] = Counter()
    for _ in range(10):
        for piece in take(queue, 200):
            given[piece.item.request.model.tenant] += len(piece.window)
    assert abs(given["acme"] - given["globex"]) < 200, "two that want all get as much"


async def test_the_one_text_of_a_quiet_tenant_is_not_held_up_by_its_batch(home: Home) -> None:
    queue = queue_of(1_000_000)
    queue.put(await items(home, MOOD, home.covered * 10))
    take(queue, 200)
    late = await items(home, OTHER, home.covered[:1])
    queue.put(late)
    assert [p.item for p in take(queue, 10_000)] == late, "the loud one's texts wait for the next batch"
    third = [replace(late[0], request=replace(late[0].request, model=ModelId("third", "mood")))]
    for item in (*late, *third):
        item.cut = 0
    queue.put(late)
    queue.put(third)
    batch = [p.item for p in take(queue, 10_000)]
    assert {id(item) for item in (*late, *third)} < {id(item) for item in batch[:3]}, (
        "the loud one waited while another had its turn, so one of its texts may go first, and no more"
    )
    assert len(batch) > 5, "three wait, so the batch is filled"


async def test_a_batch_is_a_short_turn(home: Home) -> None:
    """Its time is estimated from earlier batches of the same kind."""
    flood = await items(home, MOOD, home.covered * 10)
    for a_token in (0.001, 0.1):
        pace = Pace()
        for _ in range(30):
            pace.ran(flood[0].key, 500.0, 500 * a_token)
        queue = BatchQueue(1_000_000, pace)
        queue.put(await items(home, MOOD, home.covered * 10))
        sizes = [work_in(take(queue, 100_000, 100 * a_token)) for _ in range(4)]
        assert all(40 < size <= 100 for size in sizes), sizes
    assert work_of(512, 64) > 2 * work_of(256, 64), "attention is of each to each"


async def test_a_long_text_is_as_many_turns_as_windows(home: Home) -> None:
    (long,) = await items(home, MOOD, home.covered[:1])
    long.windows *= 8
    queue = queue_of(1_000_000)
    queue.put([long])
    (first,) = take(queue, 10)
    late = await items(home, OTHER, home.covered[:1])
    queue.put(late)
    (second,) = take(queue, 10)
    assert (first.item, second.item) == (long, late[0])
    cast(Kept, long.sink).wanted = False
    queue.put(await items(home, OTHER, home.covered[1:2]))
    assert [p.item.request.model.tenant for p in take(queue, 1000)] == ["globex"], (
        "whose client has gone goes"
    )
    assert queue.tokens == 0


def tokenised(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that from now on gets each text that is tokenised."""
    read: list[str] = []
    encode = Tokenizer.encode

    def counted(self: Tokenizer, texts: Sequence[Text], max_length: int) -> list[Encoded]:
        read.extend(map(str, texts))
        return encode(self, texts, max_length)

    monkeypatch.setattr(Tokenizer, "encode", counted)
    return read


async def test_a_call_is_tokenised_in_turns(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hmi.engine.admit.admission.TURN_S", 0.0)
    read = tokenised(monkeypatch)
    async with admitting(loader_of(home)) as admission:
        for model in (MOOD, OTHER):
            await admission.admit([TextRequest(model, "warm")])
        flood = asyncio.create_task(admission.admit([TextRequest(MOOD, t) for t in home.covered * 30]))
        while len(read) < 3:
            await asyncio.sleep(0.001)
        before = len(read)
        ((_, windows, _),) = await admission.admit([TextRequest(OTHER, "a quiet text")])
        assert len(windows[0]) == 5
        assert read.index("a quiet text") <= before + 1, "one text of the flood that was begun, and no more"
        flood.cancel()
        await asyncio.gather(flood, return_exceptions=True)
        await admission.admit([TextRequest(OTHER, "the last")])
        assert len(read) < len(home.covered * 30), "a call whose client has gone is dropped"
        with pytest.raises(InvalidInput, match=r"give a text in \[1\]\.inputs") as error:
            await admission.admit(
                [TextRequest(OTHER, "good"), TextRequest(OTHER, ["bad"], place="[1].inputs")]
            )
        assert error.value.details["field"] == "[1].inputs"


async def test_a_call_that_fails_is_a_turn_like_any(home: Home) -> None:
    begin, ended = asyncio.Event(), list[str]()
    loader = loader_of(home)
    for model in (MOOD, OTHER):
        await loader.load(model, exact=False)
    async with admitting(loader, later=begin) as admission:

        async def call(model: ModelId, *texts: Text) -> None:
            with suppress(InvalidInput):
                await admission.admit([TextRequest(model, text) for text in texts])
            ended.append(model.tenant)

        calls = [asyncio.create_task(call(MOOD, "fine", ["not so"])) for _ in range(20)]
        await asyncio.sleep(0)
        calls.append(asyncio.create_task(call(OTHER, "a quiet text")))
        await asyncio.sleep(0)
        begin.set()
        await asyncio.gather(*calls)
    assert ended.index(OTHER.tenant) <= 2, ended


async def test_large_calls_of_a_tenant_stand_in_line(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """No call is tokenised only to be refused by a full queue, and neither small
    calls nor other tenants wait."""
    monkeypatch.setattr("hmi.engine.admit.one_large_call.LARGE_CHARACTERS", 10_000)
    engine = home.engine(queue_tokens=4 * 1500)
    read = tokenised(monkeypatch)
    await engine.start()
    texts = (home.covered * 4)[:100]
    ended: list[str] = []

    async def call(name: str, model: ModelId, texts: list[str]) -> list[TextResult]:
        results = await engine.infer([TextRequest(model, text) for text in texts])
        ended.append(name)
        return results

    calls = [call(f"large {i}", MOOD, texts) for i in range(4)]
    calls += [call("small", MOOD, texts[:1]), call("other", OTHER, texts)]
    tasks = [asyncio.create_task(c) for c in calls]
    late = asyncio.create_task(
        engine.infer([TextRequest(MOOD, t, deadline=time.monotonic() + 0.001) for t in texts])
    )
    results = await asyncio.gather(*tasks)
    assert [len(answers) for answers in results] == [100, 100, 100, 100, 1, 100], "all at once would not fit"
    assert ended.index("small") < ended.index("large 1")
    assert ended.index("other") < ended.index("large 3")
    with pytest.raises(DeadlineExceeded):
        await late
    assert len(read) == 501, "each text once, and none of the call whose deadline passed in line"
    await engine.stop()


async def test_tokenising_rests_while_others_are_there(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hmi.engine.admit.admission.TURN_S", 0.0)
    encode = Tokenizer.encode

    def slow(self: Tokenizer, texts: Sequence[Text], max_length: int) -> list[Encoded]:
        time.sleep(0.005)
        return encode(self, texts, max_length)

    monkeypatch.setattr(Tokenizer, "encode", slow)
    loader = loader_of(home)
    await loader.load(MOOD, exact=False)
    async with admitting(loader) as admission:
        await admission.admit([TextRequest(OTHER, "a quiet text")])
        begun = time.monotonic()
        await admission.admit([TextRequest(MOOD, t) for t in home.covered[:10]])
        took = time.monotonic() - begun
    assert took >= 10 * 0.005 + 9 * 0.015, "a quarter of the time: nine rests between ten turns"


async def test_an_end_without_draining_tokenises_nothing_more(home: Home) -> None:
    engine = home.engine()
    await engine.start()
    calls = [
        asyncio.create_task(engine.infer([TextRequest(MOOD, t) for t in home.covered * 20])) for _ in range(8)
    ]
    await asyncio.sleep(0)
    await engine.stop(drain=False)
    assert all(isinstance(r, Unavailable) for r in await asyncio.gather(*calls, return_exceptions=True))


async def test_a_text_in_several_batches_answers_as_in_one(home: Home) -> None:
    words = " ".join(home.covered * 3).split()
    answers = []
    for batch_ms in (1, 10_000):
        engine = home.engine(batch_ms=batch_ms, streams=2)
        await engine.start()
        engine._pace.ran = lambda *_: None  # type: ignore[method-assign]
        answers.append(await engine.infer([TextRequest(TAGS, words[i:]) for i in range(4)]))
        await engine.stop()
    for apart, together in zip(*answers, strict=True):
        assert apart.tags == together.tags
        assert apart.tag_scores == pytest.approx(together.tag_scores, abs=1e-4)


async def test_one_tenants_flood_leaves_room_for_others(home: Home) -> None:
    flood = await items(home, MOOD, home.covered * 10)
    queue = queue_of(400)
    queue.put(flood)
    with pytest.raises(QuotaExceeded, match="tenant acme has"):
        queue.put(await items(home, MOOD, home.covered[:1]))
    queue.put(await items(home, OTHER, home.covered[:1]))
    before = queue.tokens
    drained = 0
    while drained < before:
        drained += sum(len(p.window) for p in take(queue, 500))
    assert queue.tokens == 0


def test_an_idle_cache_drops_the_old_and_the_surplus() -> None:
    made: list[int] = []
    cache: IdleCache[int, int] = IdleCache(2, 0.05)

    def get(key: int) -> int:
        found = cache.peek(key)
        if found is None:
            made.append(key)
            return cache.put(key, key)
        return found

    assert [get(k) for k in (1, 2, 1)] == [1, 2, 1]
    assert made == [1, 2]
    get(3)
    assert len(cache) == 2, "the least recently used goes"
    assert get(1) == 1
    assert made == [1, 2, 3]
    time.sleep(0.06)
    get(4)
    assert len(cache) == 1
