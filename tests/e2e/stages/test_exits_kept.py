"""Early exits in the engine: draws that no sender can choose."""

from __future__ import annotations

from dataclasses import replace

from tests.e2e.conftest import Home
from tests.e2e.stages.exits_lab import plant, ramped, requests, state_of
from tests.e2e.stages.test_exits import ANY, MOOD, started


async def test_a_sender_who_always_names_the_same_id_gets_audits_all_the_same(home: Home) -> None:
    with ramped(home, MOOD) as artefact:
        async with started(home.engine(precision="fp32")) as engine:
            await engine.infer(requests(MOOD, home.covered[:1]))
            plant(state := state_of(engine, artefact), ANY, phase=0)
            texts = [home.covered[i % 8] for i in range(80)]
            await engine.infer([replace(one, id="same") for one in requests(MOOD, texts)])
            # Until the alarm, which may ring early. If draws read the id, one of both would be 0.
            assert state.control.audits.seen > 0
            assert state.control.left_at.total() > 0
