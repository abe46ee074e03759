"""A cold part delays only the requests that need it, and is loaded once for all of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hmi.core import ModelId
from hmi.engine import TextRequest
from hmi.engine.admit.bundles import Bundles
from hmi.errors import Damaged, Unavailable
from tests.e2e.conftest import Home
from tests.waiting import until

MOOD, PAIRS = ModelId("acme", "mood"), ModelId("acme", "pairs")
TAGS, OTHER = ModelId("globex", "tags"), ModelId("globex", "mood")


class Gate:
    """Holds some calls of a function until it is opened, and counts them."""

    def __init__(self, wanted: Callable[..., bool]) -> None:
        self.wanted = wanted
        self.calls = 0
        self.opened = threading.Event()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def held(*given: Any) -> Any:
            if self.wanted(*given):
                self.calls += 1
                assert self.opened.wait(60)
            return function(*given)

        return held


@contextmanager
def gate(owner: object, name: str, wanted: Callable[..., bool], patch: pytest.MonkeyPatch) -> Iterator[Gate]:
    held = Gate(wanted)
    patch.setattr(owner, name, held(getattr(owner, name)))
    try:
        yield held
    finally:
        held.opened.set()


@pytest.mark.parametrize("part", ["domain", "module", "lower"])
async def test_a_cold_part_delays_its_own(home: Home, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    version = home.manager.registry.model(OTHER).live
    engine = home.engine()
    await engine.start()
    await engine.infer([TextRequest(MOOD, home.covered[0])])  # loads the model and with it the root
    exact = part == "lower"
    owner, name, wanted = {
        "domain": (home.manager.plots, "reader", lambda v, *_: v == version.plot_version),
        "module": (home.manager.adapters, "map", lambda a, *_: a == version.artefact),
        "lower": (Bundles, "_load_lower", lambda *_: True),
    }[part]
    with gate(owner, name, wanted, monkeypatch) as held:
        cold = [
            asyncio.create_task(engine.infer([TextRequest(OTHER, t, exact=exact)])) for t in home.covered[:5]
        ]
        await until(lambda: held.calls > 0)
        warm = await asyncio.gather(*(engine.infer([TextRequest(MOOD, t)]) for t in home.covered))
        assert len(warm) == len(home.covered)
        same_tenant = await engine.infer([TextRequest(TAGS, home.covered[0].split())])
        assert same_tenant[0].tags
        assert not any(task.done() for task in cold)
        held.opened.set()
        results = await asyncio.gather(*cold)
    assert held.calls == 1, "once for all who wait"
    assert all(result.label for (result,) in results)
    await engine.stop()


async def test_a_load_that_fails_is_told_to_each_by_itself(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = home.engine()
    await engine.start()

    def broken(*_: object) -> None:
        raise Damaged("the root is damaged: import it again")

    with monkeypatch.context() as patch:
        patch.setattr(Bundles, "_load_upper", broken)
        calls = [engine.infer([TextRequest(MOOD, t)]) for t in home.covered[:4]]
        errors = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(error, Damaged) for error in errors)
    assert len({id(error) for error in errors}) == 4
    assert (await engine.infer([TextRequest(MOOD, home.covered[0])]))[0].label, "the next one loads it again"
    await engine.stop()


async def test_an_end_while_something_loads(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = home.engine()
    await engine.start()
    with gate(Bundles, "_load_upper", lambda *_: True, monkeypatch) as held:
        waiting = asyncio.create_task(engine.infer([TextRequest(MOOD, home.covered[0])]))
        await until(lambda: held.calls > 0)
        stop = asyncio.create_task(engine.stop(drain=False))
        with pytest.raises(Unavailable):
            await waiting
        held.opened.set()
        await stop
