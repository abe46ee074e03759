"""Pinned modules: what nobody waits for is not held, and each model's error names that model."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, cast
from unittest.mock import Mock

import pytest

from hmi.core import ModelId
from hmi.engine.admit.admission import Recent
from hmi.engine.admit.bundles import Bundles, Part
from hmi.engine.admit.cache import IdleCache
from hmi.engine.admit.loading import ROOM_S, ModelLoader
from hmi.errors import Damaged
from hmi.stores.tensors.adapter_pool import AdapterPool, Size
from hmi.stores.tensors.adapter_store import DamagedArtefact
from tests.waiting import until


class AtHand:
    """Bundles with everything in memory but the lower layers."""

    def __init__(self, lower: Callable[[], Any]) -> None:
        self._lower = lower

    def record(self, model: ModelId) -> Any:
        return Mock(live=Mock(tenant=model.tenant, task="classification"))

    def upper(self, version: Any) -> Part[Any]:
        return at_hand("root")

    def reader(self, version: Any) -> Part[Any]:
        return at_hand(version.tenant)

    def lower(self, version: Any, upper: Any, reader: Any) -> Part[Any]:
        return Part(("lower",), IdleCache(1, 1.0), self._lower)

    def close(self) -> None: ...


def at_hand(name: str) -> Part[Any]:
    class Version:
        ref = name

    class Value:
        version = Version()
        executor = Mock()

    cache: IdleCache[tuple[str, ...], Any] = IdleCache(1, 60.0)
    cache.put((name,), Value())
    return Part((name,), cache, Value)


async def test_a_hold_that_is_cancelled_holds_nothing_whatever_comes_of_its_load() -> None:
    """In three ways: the load ends, it raises, and the server stops before it begins."""
    go_on, wrong = threading.Event(), []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: wrong.append(about))

    def load(name: str) -> Any:
        assert go_on.wait(60)
        if name == "raises":
            raise SystemExit(3)
        return Mock()

    pool: AdapterPool[Any] = AdapterPool(10, load, lambda part: Size(10))
    loader = ModelLoader(cast(Bundles, AtHand(list)), pool)
    holds = [asyncio.create_task(loader.hold([name], Mock())) for name in ("ends", "raises", "never begins")]
    await until(lambda: pool.misses >= 2)
    for hold in holds:
        hold.cancel()
    await asyncio.gather(*holds, return_exceptions=True)
    closing = asyncio.create_task(asyncio.to_thread(loader.close))
    await asyncio.sleep(0.05)
    assert not closing.done(), "it waits for what is being loaded"
    go_on.set()
    await closing
    await asyncio.sleep(0.05)
    assert wrong == []
    assert [(name, cached.holders) for name, cached in pool._cached.items()] == [("ends", 0)]


async def test_lower_layers_that_domains_share_are_named_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """One load serves all who wait, and each one's error names its own domain."""
    go_on, loads = threading.Event(), []

    def damaged() -> Any:
        loads.append(1)
        assert go_on.wait(60)
        raise DamagedArtefact("0123", "fails its checksum", "restore it")

    async def at_once(*_: object, **__: object) -> None:
        """The module is in memory."""

    pool: AdapterPool[Any] = AdapterPool(1, lambda name: name, lambda name: Size(1))
    loader = ModelLoader(cast(Bundles, AtHand(damaged)), pool)
    monkeypatch.setattr(loader, "_module", at_once)
    models = [ModelId("acme", "mood"), ModelId("globex", "mood")]
    waiting = [asyncio.create_task(loader.load(model, exact=True)) for model in models]
    while not loads:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.05)
    go_on.set()
    errors = await asyncio.gather(*waiting, return_exceptions=True)
    assert len(loads) == 1
    for model, error in zip(models, errors, strict=True):
        assert isinstance(error, Damaged)
        assert f"domain {model.tenant}'s lower layers" in str(error)
        assert "0123" not in str(error)


def test_tenants_that_sent_something_are_forgotten_without_being_asked_about(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr("hmi.engine.admit.admission.time.monotonic", lambda: now)
    recent = Recent()
    for i in range(1000):
        recent.sent(f"tenant {i}")
        now += 0.1
    assert len(recent._sent) < 20


async def test_a_batch_without_room_waits_before_it_reads_its_module_again() -> None:
    loads = []

    def load(name: str) -> Any:
        loads.append(name)
        return Mock()

    pool: AdapterPool[Any] = AdapterPool(10, load, lambda part: Size(10))
    loader = ModelLoader(cast(Bundles, AtHand(list)), pool)
    await loader.hold(["held"], Mock())
    begun = time.monotonic()
    waiting = asyncio.create_task(loader.hold(["new"], Mock()))
    await asyncio.sleep(6 * ROOM_S)
    assert loads.count("new") <= (time.monotonic() - begun) / ROOM_S + 2
    loader.let_go(["held"])
    parts, errors = await waiting
    assert (list(parts), errors) == (["new"], {})
    loader.let_go(["new"])
    await asyncio.to_thread(loader.close)


class Renewed(AtHand):
    """A model that is deleted while its module `old` loads, and published again with `new` under its name."""

    pool: AdapterPool[Any]
    artefact = "old"

    def record(self, model: ModelId) -> Any:
        live = Mock(artefact=self.artefact, tenant=model.tenant)
        return Mock(live=live, versions=[live])

    def upper(self, version: Any) -> Part[Any]:
        cache: IdleCache[tuple[str, ...], Any] = IdleCache(1, 60.0)
        cache.put(("root",), Mock())
        return Part(("root",), cache, Mock)

    def bits(self, record: Any, upper: Any) -> int:
        return 0

    def gone(self, version: Any) -> tuple[list[str], list[str]]:
        return [], []

    def forget(self, roots: Any, plots: Any) -> None: ...

    def read(self, name: str) -> Any:
        if name == "old":
            self.artefact = "new"
            self.pool.forget(["old"])
        return Mock()


async def test_a_module_whose_model_is_deleted_while_it_loads_does_not_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hmi.engine.admit.loading._bundle", lambda model, record, *parts: record.live)
    bundles = Renewed(list)
    bundles.pool = AdapterPool(100, bundles.read, lambda part: Size(10))
    loader = ModelLoader(cast(Bundles, bundles), bundles.pool)
    found: Any = await loader.load(ModelId("acme", "mood"), exact=False)
    assert found.artefact == "new"
    assert bundles.pool.resident() == ["new"]
    done = asyncio.Event()
    loader.prefetch(Mock(version=Mock(artefact="old")), done.set)  # for a text that was admitted before
    await until(lambda: not loader._loads)
    assert bundles.pool.resident() == ["new"]
    await asyncio.to_thread(loader.close)
