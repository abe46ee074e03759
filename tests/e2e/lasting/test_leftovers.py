"""A call or batch that has ended leaves nothing that only the garbage collector could free."""

from __future__ import annotations

import gc
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from hmi.core import ModelId
from hmi.engine import Engine, TextRequest
from hmi.engine.admit.admission import TenantCall
from hmi.engine.texts.item import Item
from hmi.execution.packed import PackedExecutor
from tests.e2e.conftest import Home
from tests.waiting import until

MOOD, PAIRS, TAGS = ModelId("acme", "mood"), ModelId("acme", "pairs"), ModelId("globex", "tags")
CALLS = 20
LONG = "cell " * 400
"""Longer than a text that is tokenised on the event loop."""


@contextmanager
def uncollected() -> Iterator[Counter[str]]:
    """Fills the counter with the types of the objects in the block's cycles."""
    found: Counter[str] = Counter()
    gc.freeze()  # what there is before the block is not visited, which would take seconds in a large process
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found.update(type(left).__qualname__ for left in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        gc.unfreeze()


async def failing(engine: Engine, requests: Sequence[TextRequest]) -> str:
    """The error's class, and nothing that would keep the error."""
    try:
        await engine.infer(requests)
    except Exception as error:
        return type(error).__name__
    raise AssertionError("it did not fail")


async def left_by(engine: Engine, texts: Callable[[], Sequence[TextRequest]]) -> Counter[str]:
    """The types of the objects that failing calls leave in cycles.

    The calls run in two rounds, and only what both leave counts. So an object that another thread or a
    library happens to make during one of them does not.
    """
    rounds = []
    for _ in range(2):
        with uncollected() as found:
            for _ in range(CALLS):
                await failing(engine, texts())
        rounds.append(found)
    return rounds[0] & rounds[1]


def late() -> float:
    return time.monotonic() - 1


FAILING: dict[str, Any] = {
    "wrong form": lambda: [TextRequest(MOOD, ("one", "two"))],
    "wrong form on the thread": lambda: [TextRequest(MOOD, (LONG, "two"))],
    "wrong form of two tenants": lambda: [TextRequest(MOOD, ("a", "b")), TextRequest(TAGS, "a")],
    "wrong form after a sound text": lambda: [TextRequest(MOOD, "one"), TextRequest(MOOD, ("a", "b"))],
    "unknown model": lambda: [TextRequest(ModelId("acme", "gone"), "one")],
    "deadline": lambda: [TextRequest(MOOD, "one", deadline=late())],
    "a deadline while it waits": lambda: [TextRequest(MOOD, LONG, deadline=time.monotonic() + 0.001)] * 9,
}


@pytest.mark.parametrize("kind", FAILING)
async def test_a_failing_call_leaves_no_cycles(home: Home, kind: str) -> None:
    engine = home.engine()
    await engine.start()
    try:
        await engine.infer([TextRequest(MOOD, "one"), TextRequest(TAGS, ["one"])])
        await failing(engine, FAILING[kind]())
        left = await left_by(engine, FAILING[kind])
        assert left.total() < CALLS, left
    finally:
        await engine.stop()


async def test_a_failing_batch_leaves_no_cycles(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("planted")

    # pytest keeps the errors that are logged.
    monkeypatch.setattr(logging.getLogger("hmi.engine"), "disabled", True)
    engine = home.engine()
    await engine.start()
    try:
        await engine.infer([TextRequest(MOOD, "one")])
        monkeypatch.setattr(PackedExecutor, "run", broken)
        await failing(engine, [TextRequest(MOOD, "one")])
        left = await left_by(engine, lambda: [TextRequest(MOOD, "one")])
        assert left.total() < CALLS, left
    finally:
        await engine.stop()


async def test_a_call_without_texts_is_answered(home: Home) -> None:
    engine = home.engine()
    await engine.start()
    try:
        assert await engine.infer([]) == []
    finally:
        await engine.stop()


async def test_an_idle_engine_keeps_no_call(home: Home) -> None:
    """Else a root's memory would not be freed when it is deleted."""
    engine = home.engine()
    await engine.start()
    try:
        with uncollected():
            before = kept(Item), kept(TenantCall)  # earlier tests of this process may have left some
            await engine.infer([TextRequest(MOOD, LONG)])
            await until(lambda: (kept(Item), kept(TenantCall)) == before, limit_s=10)
            assert (kept(Item), kept(TenantCall)) == before
    finally:
        await engine.stop()


def kept(kind: type) -> int:
    return sum(type(found) is kind for found in gc.get_objects())


async def test_a_module_that_cannot_be_loaded_is_logged_once_however_many_calls_want_it(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    engine = home.engine(pool_bytes=1)
    await engine.start()
    try:
        with caplog.at_level(logging.ERROR, "hmi.engine"):
            for _ in range(CALLS):
                assert await failing(engine, [TextRequest(MOOD, "one")]) == "TooLarge"
    finally:
        await engine.stop()
    assert len([r for r in caplog.records if "could not be loaded" in r.message]) == 1
