"""Garbage collection in a server: what full collections visit, and that no cycle stays for ever."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import ProcessPoolExecutor

import pytest

from hmi.api.process import garbage
from tests.waiting import until


class Cycle:
    """An object that only the collector can free."""

    def __init__(self) -> None:
        self.me = self


async def visits() -> None:
    garbage.EVERY_S, garbage.LOOK_S = 0.05, 0.01
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


async def never_idle() -> None:
    garbage.GROWTH, garbage.SPARE = 1.0, 1_000
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


def run(steps: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(steps())


@pytest.mark.parametrize("steps", [visits, never_idle])
def test_full_collections_visit_what_is_new_and_from_time_to_time_everything(
    steps: Callable[[], Coroutine[None, None, None]],
) -> None:
    """Each runs in a new process: to visit everything takes seconds in one that has run many tests."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as alone:
        alone.submit(run, steps).result()
