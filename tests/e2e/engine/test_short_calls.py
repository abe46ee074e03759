"""A short call is tokenised on the event loop, unless a call waits that goes before it. A call that is
refused is told how long what waits will take."""

from __future__ import annotations

import asyncio

import pytest

from hmi.core import ModelId
from hmi.engine import TextRequest
from hmi.engine.admit.admission import SHORT_CHARACTERS, Admission
from hmi.errors import QuotaExceeded
from tests.e2e.conftest import Home
from tests.e2e.engine.hall import admitting, loader_of

MOOD, OTHER = ModelId("acme", "mood"), ModelId("globex", "mood")


async def test_a_short_call_runs_at_once_if_it_is_next(home: Home) -> None:
    loader, begin = loader_of(home), asyncio.Event()
    for model in (MOOD, OTHER):
        await loader.load(model, exact=False)
    async with admitting(loader, later=begin) as admission:  # nobody gives turns until `begin`
        for model in (MOOD, OTHER):
            ((bundle, windows, _),) = await admission.admit([TextRequest(model, "a quiet text")])
            assert bundle.model == model
            assert len(windows) == 1
        assert not admission._waiting
        text = "a quiet text " * (1 + SHORT_CHARACTERS // 12)
        calls = [[TextRequest(MOOD, text)], [TextRequest(MOOD, "a quiet text")]]
        waiting = [asyncio.create_task(admission.admit(call)) for call in calls]
        await asyncio.sleep(0.05)
        admission._turns.charge("acme", 1.0)
        ((bundle, _, _),) = await admission.admit([TextRequest(OTHER, "a quiet text")])
        assert bundle.model == OTHER, "a loud tenant's call waits, but this one is next"
        admission._turns.charge("globex", 2.0)
        waiting.append(asyncio.create_task(admission.admit([TextRequest(OTHER, "a quiet text")])))
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in waiting), "others received less, or sent before"
        begin.set()
        long, short, late = await asyncio.gather(*waiting)
        assert [bundle.model for bundle, _, _ in (*long, *short, *late)] == [MOOD, MOOD, OTHER]


async def test_a_short_call_for_a_model_that_is_not_in_memory_waits_for_its_load(home: Home) -> None:
    async with admitting(loader_of(home)) as admission:
        ((bundle, _, _),) = await admission.admit([TextRequest(MOOD, "a quiet text")])
        assert bundle.model == MOOD
        assert not admission._waiting


async def refused_s(admission: Admission) -> int:
    """The `retry_after_s` of a call that is refused."""
    with pytest.raises(QuotaExceeded, match="characters waiting") as caught:
        await admission.admit([TextRequest(MOOD, "x" * 100)])
    return int(caught.value.details["retry_after_s"])


async def test_a_refused_call_is_told_how_long_tokenising_takes(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hmi.engine.admit.admission.MAX_CHARACTERS", 1 << 14)
    loader, begin = loader_of(home), asyncio.Event()
    for model in (MOOD, OTHER):
        await loader.load(model, exact=False)
    async with admitting(loader, later=begin) as admission:
        admission._s_per_character = 1e-3
        long = [TextRequest(MOOD, "word " * 100) for _ in range(10)]
        flood = asyncio.create_task(admission.admit(long))
        await asyncio.sleep(0)
        assert await refused_s(admission) == 5, "5,000 characters of its own"
        other = asyncio.create_task(admission.admit([TextRequest(OTHER, "word " * 300)]))
        await asyncio.sleep(0)
        assert admission._wait_s(None) == pytest.approx(6.5)
        assert await refused_s(admission) == 20, "while another sends, it rests between turns"
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
        assert admission._wait_s(None) == pytest.approx(5.0), "what nobody waits for takes no time"
        begin.set()
        await flood
        assert not admission._left
        assert admission._s_per_character < 1e-3, "learnt from the turns"
