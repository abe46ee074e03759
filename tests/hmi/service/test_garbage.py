"""Garbage collection in a server: what full collections visit, and that no cycle stays for ever."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from hmi.api.process import garbage
from tests.waiting import until


class Cycle:
    """An object that only the collector can free."""

    def __init__(self) -> None:
        self.me = self


async def test_a_full_collection_visits_only_what_is_new_and_a_rare_one_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(garbage, "EVERY_S", 0.05)
    monkeypatch.setattr(garbage, "LOOK_S", 0.01)
    idle, callbacks = False, list(gc.callbacks)
    async with garbage.short_collections(lambda: idle):
        old = Cycle()
        gc.collect()
        assert len(gc.get_objects()) < gc.get_freeze_count() / 10, "survivors are left out"
        fresh, kept = Cycle(), weakref.ref(old)
        gone = weakref.ref(fresh)
        del old, fresh
        gc.collect()
        assert gone() is None, "a new cycle is found at once"
        await asyncio.sleep(0.1)
        assert kept() is not None, "an old one waits while requests are under way"
        idle = True
        await until(lambda: kept() is None)
    assert gc.get_freeze_count() == 0
    assert gc.callbacks == callbacks


async def test_cycles_that_were_in_use_at_full_collections_stay_few_in_a_server_that_is_never_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(garbage, "GROWTH", 1.0)
    monkeypatch.setattr(garbage, "SPARE", 1_000)
    left: weakref.WeakSet[Cycle] = weakref.WeakSet()
    async with garbage.short_collections(lambda: False):
        most = 0
        for _ in range(15):
            in_use = [Cycle() for _ in range(200)]
            left.update(in_use)
            gc.collect()
            del in_use
            most = max(most, len(left))
        assert most <= 2_000, "of 3,000"
