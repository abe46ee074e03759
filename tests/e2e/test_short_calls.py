"""A short call is tokenised on the event loop, unless another call waits for its turn."""

from __future__ import annotations

import asyncio

from hmi.core import ModelId
from hmi.engine import TextRequest
from hmi.engine.admission import SHORT_CHARACTERS
from tests.e2e.conftest import Home
from tests.e2e.hall import admitting, loader_of

MOOD, OTHER = ModelId("acme", "mood"), ModelId("globex", "mood")


async def test_a_short_call_runs_at_once_and_overtakes_nobody(home: Home) -> None:
    loader, begin = loader_of(home), asyncio.Event()
    for model in (MOOD, OTHER):
        await loader.load(model, exact=False)
    async with admitting(loader, later=begin) as admission:  # nobody gives turns until `begin`
        for model in (MOOD, OTHER):
            ((bundle, windows),) = await admission.admit([TextRequest(model, "a quiet text")])
            assert bundle.model == model
            assert len(windows) == 1
        assert not admission._waiting
        text = "a quiet text " * (1 + SHORT_CHARACTERS // 12)
        calls = [[TextRequest(MOOD, text)], [TextRequest(OTHER, "a quiet text")]]
        waiting = [asyncio.create_task(admission.admit(call)) for call in calls]
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in waiting), "the second call was there after the first"
        begin.set()
        long, short = await asyncio.gather(*waiting)
        assert [bundle.model for bundle, _ in (*long, *short)] == [MOOD, OTHER]


async def test_a_short_call_for_a_model_that_is_not_in_memory_waits_for_its_load(home: Home) -> None:
    async with admitting(loader_of(home)) as admission:
        ((bundle, _),) = await admission.admit([TextRequest(MOOD, "a quiet text")])
        assert bundle.model == MOOD
        assert not admission._waiting
