"""One tenant never breaks, starves or outlasts another in the engine."""

from __future__ import annotations

import asyncio
import time

import pytest

from hmi.core import ModelId
from hmi.engine import InferRequest
from hmi.engine.cache import IdleCache
from hmi.engine.queue import BatchQueue, Item
from hmi.errors import Damaged, DeadlineExceeded, Unavailable
from tests.e2e.conftest import Home

MOOD, TAGS, OTHER = ModelId("acme", "mood"), ModelId("globex", "tags"), ModelId("globex", "mood")


async def test_a_damaged_module_fails_its_own_tenant_only(home: Home) -> None:
    artefact = home.manager.model("globex.mood").live.artefact
    path = home.settings.data / "adapters" / f"{artefact}.safetensors"
    intact = path.read_bytes()
    engine = home.engine()
    await engine.start()
    calls = [engine.infer([InferRequest(m, t)]) for t in home.covered[:6] for m in (MOOD, OTHER)]
    try:
        path.write_bytes(intact[:-8] + b"\0" * 8)
        results = await asyncio.gather(*calls, return_exceptions=True)
    finally:
        path.write_bytes(intact)
    assert all(isinstance(r, list) for r in results[::2]), "a neighbour's damage reached this tenant"
    assert all(isinstance(r, Damaged) for r in results[1::2])
    (again,) = await engine.infer([InferRequest(OTHER, home.covered[0])])
    assert again.label, "a repaired module must answer again without a restart"
    await engine.stop()


async def test_a_deadline_ends_the_wait(home: Home) -> None:
    engine = home.engine()
    await engine.start()
    flood = asyncio.create_task(engine.infer([InferRequest(MOOD, t) for t in home.covered * 20]))
    await asyncio.sleep(0.05)
    begun = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        await engine.infer([InferRequest(MOOD, t, deadline=begun + 0.001) for t in home.covered])
    flood.cancel()
    await asyncio.gather(flood, return_exceptions=True)
    await engine.stop()


async def items(home: Home, model: ModelId, texts: list[str], exact: bool = False) -> list[Item]:
    """Queue items as the engine makes them."""
    bundles = home.engine()._bundles
    bundle = bundles.resolve(model)
    loop = asyncio.get_running_loop()
    encoded = bundle.root.tokenizer.encode(texts, 64)
    return [
        Item(InferRequest(model, t, exact=exact), bundle, [e], loop.create_future())
        for t, e in zip(texts, encoded, strict=True)
    ]


async def test_tenants_and_groups_take_turns(home: Home) -> None:
    queue = BatchQueue(1_000_000)
    flood = await items(home, MOOD, home.covered * 10, exact=True)
    queue.put(flood)
    late = await items(home, OTHER, home.covered[:2])
    queue.put(late)
    batches = [await queue.take(200) for _ in range(2)]
    assert any(late[0] in b for b in batches), "the later group must be served at the second turn"
    queue = BatchQueue(1_000_000)
    queue.put(await items(home, MOOD, home.covered * 10))
    queue.put(late)
    (first, second, *_) = await queue.take(10_000)
    assert {first.request.model.tenant, second.request.model.tenant} == {"acme", "globex"}


async def test_one_tenants_flood_leaves_room_for_others(home: Home) -> None:
    queue = BatchQueue(400)
    queue.put(await items(home, MOOD, home.covered * 10))
    with pytest.raises(Unavailable):
        queue.put(await items(home, MOOD, home.covered[:1]))
    queue.put(await items(home, OTHER, home.covered[:1]))
    before = queue.tokens
    drained = 0
    while drained < before:
        drained += sum(i.tokens for i in await queue.take(500))
    assert queue.tokens == 0


def test_an_idle_cache_drops_the_old_and_the_surplus() -> None:
    made: list[int] = []
    cache: IdleCache[int, int] = IdleCache(2, 0.05)

    def get(key: int) -> int:
        return cache.get(key, lambda: made.append(key) or key)

    assert [get(k) for k in (1, 2, 1)] == [1, 2, 1]
    assert made == [1, 2]
    get(3)
    assert len(cache) == 2, "the least recently used goes"
    assert get(1) == 1
    assert made == [1, 2, 3]
    time.sleep(0.06)
    get(4)
    assert len(cache) == 1
