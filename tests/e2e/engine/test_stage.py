"""A stage from its hook to provenance and metrics: one that drops the last quarter of each text's rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from hmi.core import ModelId
from hmi.engine import TextRequest
from hmi.engine.run.running import Cut
from hmi.engine.schedule.limits import BatchLimits
from hmi.engine.schedule.pace import BATCH_WORK, Pace
from hmi.engine.schedule.queue import BatchQueue
from hmi.engine.texts.item import Piece
from hmi.execution import BatchKey, Hook
from hmi.metrics import Metrics
from hmi.stages.base import OFF, Effect, Setting, Shape, StageBatch
from hmi.stages.planner import BatchCost, Candidate, Plan, RoundRobin
from tests.e2e.conftest import Home
from tests.e2e.engine.hall import items
from tests.hmi.execution.test_execution import Drop

MOOD, TAGS = ModelId("acme", "mood"), ModelId("globex", "tags")
QUARTER = Setting("quarter")


class Shorter:
    """A stage that keeps the first three quarters of each text's rows after the first layer."""

    name = "shorter"

    def __init__(self) -> None:
        self.batches: list[StageBatch] = []

    def settings(self, key: BatchKey) -> Sequence[Setting]:
        return (OFF, QUARTER)

    def effect(self, setting: Setting, shape: Shape) -> Effect:
        return Effect(rows=(1.0, *([0.75] * (shape.layers - 1))))

    def hooks(self, setting: Setting, batch: StageBatch) -> Sequence[Hook]:
        self.batches.append(batch)
        return [Drop(before=1)]


class Always(RoundRobin):
    """The order of RoundRobin, with the same setting of one stage in every batch."""

    def __init__(self, stage: Shorter, place: int) -> None:
        self.stages = (stage,)
        self._place = place
        self.learnt: list[tuple[Plan, BatchCost]] = []

    def plan(self, candidates: Sequence[Candidate], now: float) -> Plan:
        chosen = min(candidates)
        return Plan(chosen, {stage.name: stage.settings(chosen.key)[self._place] for stage in self.stages})

    def learn(self, plan: Plan, measured: BatchCost) -> None:
        self.learnt.append((plan, measured))


def asked(home: Home) -> list[TextRequest]:
    requests = [TextRequest(MOOD, t, scores=True, provenance=True) for t in home.covered[:8]]
    return requests + [TextRequest(TAGS, t.split(), provenance=True) for t in home.covered[:4]]


async def test_a_stage_reaches_provenance_metrics_and_planner(home: Home) -> None:
    stage, metrics = Shorter(), Metrics()
    planner = Always(stage, 1)
    engine = home.engine(metrics, planner)
    await engine.start()
    results = await engine.infer(asked(home))
    await engine.stop()
    for request, result in zip(asked(home), results, strict=True):
        assert result.provenance is not None
        assert result.provenance.stages == {"shorter": "quarter"}
        if isinstance(request.text, list):
            assert len(result.tags or ()) == len(request.text), "every word has a tag, dropped or not"
    assert {text.model for batch in stage.batches for text in batch.texts} == {MOOD, TAGS}
    assert sum(measured.texts for _, measured in planner.learnt) == len(results)
    assert (
        'hmi_execution_stage_inputs_total{setting="quarter",stage="shorter"} 12.0'
        in metrics.render().decode()
    )


async def test_a_stage_that_is_off_changes_nothing(home: Home) -> None:
    answers = []
    for planner in (Always(Shorter(), 0), None):
        metrics = Metrics()
        engine = home.engine(metrics, planner)
        await engine.start()
        # One request at a time: batches that form by the clock may differ, and with them the last bit.
        results = [(await engine.infer([request]))[0] for request in asked(home)]
        answers.append([(r.label, r.scores, r.tags, r.tag_scores) for r in results])
        await engine.stop()
        assert "hmi_execution_stage_inputs_total{" not in metrics.render().decode()
    assert answers[0] == answers[1], "to the last bit"
    shorter = home.engine(None, Always(Shorter(), 1))
    await shorter.start()
    dropped = await shorter.infer(asked(home)[:8])
    assert [r.scores for r in dropped] != [a[1] for a in answers[0][:8]]
    await shorter.stop()


class Tired(Shorter):
    """A stage that foresees the effect of its first batch only."""

    asked = 0

    def effect(self, setting: Setting, shape: Shape) -> Effect:
        self.asked += 1
        if self.asked > 1:
            raise RuntimeError("planted")
        return super().effect(setting, shape)


async def test_a_batch_that_ran_does_not_depend_on_its_stages_again(home: Home) -> None:
    metrics, stage = Metrics(), Tired()
    engine = home.engine(metrics, Always(stage, 1))
    await engine.start()
    assert (await engine.infer(asked(home)[:1]))[0].label
    await engine.stop()
    assert stage.asked == 1
    assert b"hmi_batch_inputs_count 1.0" in metrics.render()


async def test_the_expected_time_counts_what_the_stages_leave(home: Home) -> None:
    engine = home.engine()
    pieces = [Piece(i, 0) for i in await items(home, MOOD, home.covered)]
    plan = Plan(Candidate(0.0, 0.0, "acme", pieces[0].item.key, 3))
    whole, half = (engine._expected_s(Cut(pieces, plan, left)) for left in (1.0, 0.5))
    fixed = engine._pace.seconds(pieces[0].item.key, BATCH_WORK)
    assert half - fixed == pytest.approx((whole - fixed) / 2)


async def test_a_batch_grows_by_what_its_stages_save(home: Home) -> None:
    lengths = []
    for share in (1.0, 0.5):
        pace = Pace()
        queue = BatchQueue(1_000_000, pace)
        queue.put(await items(home, MOOD, [home.covered[0]] * 64))
        (candidate,) = queue.candidates()
        lengths.append(
            len(queue.cut(candidate, BatchLimits(12 * pace.seconds(candidate.key, 24.0), 1 << 20, share)))
        )
    assert all(later > 1.5 * earlier for earlier, later in pairwise(lengths))


def test_the_work_of_an_effect_is_the_mean_over_layers() -> None:
    assert Effect(rows=(1.0, 0.5, 0.5, 0.0)).work == pytest.approx(0.5)
