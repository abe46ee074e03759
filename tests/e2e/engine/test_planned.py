"""The engine with its own planner: deadlines and utilities, switches, costs that are measured on demand."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hmi.core import ModelId, Objective, TokenPoint
from hmi.engine import Engine, TextRequest
from hmi.engine.adaptive.planners import planner_of
from hmi.engine.adaptive.stage_costs import StageCosts
from hmi.execution.batch import BatchKey
from hmi.execution.machine import fingerprint
from hmi.metrics import Metrics
from hmi.stages.planner import RoundRobin
from hmi.stages.planning.pareto import ParetoPlanner
from hmi.stages.planning.profile import Lab, MeasurementEnded
from hmi.stages.token_adaptation.stage import TokenAdaptation
from hmi.stores.layout import Layout
from hmi.stores.profiles import StageProfiles
from tests.e2e.conftest import Home
from tests.e2e.engine.hall import bundle_of
from tests.waiting import until

MOOD = ModelId("acme", "mood")
PROFILED = tuple(TokenPoint(gamma=g, score=1.0, agreement=1.0, rows=100_000) for g in (-50, -20, 0))


async def answers(engine: Engine, requests: list[TextRequest]) -> list[Any]:
    await engine.start()
    try:
        return [await engine.infer([request]) for request in requests] + await asyncio.gather(
            *(engine.infer([request]) for request in requests)
        )
    finally:
        await engine.stop()


async def test_texts_with_deadlines_are_planned_and_answered_as_without_stages(home: Home) -> None:
    texts = [TextRequest(MOOD, text, provenance=True, scores=True) for text in home.covered[:4]]
    aims = [{"deadline": time.monotonic() + 60}, {"utility": 0.5}, {"deadline": time.monotonic() + 60.2}, {}]
    wanted = [replace(text, **aim) for text, aim in zip(texts, aims, strict=True)]
    metrics = Metrics()
    plain = await answers(home.engine(None, None, stages="none", precision="fp32"), texts)
    planned = await answers(home.engine(metrics, None, precision="fp32"), wanted)
    assert [each[0].scores for each in planned[:4]] == [each[0].scores for each in plain[:4]]
    for one, other in zip(planned, plain, strict=True):  # batches differ
        assert one[0].scores == pytest.approx(other[0].scores, abs=1e-6)
    assert [each[0].provenance.planner for each in planned[:4]] == ["fits"] * 3 + [None]
    assert {each[0].provenance.planner for each in plain} == {None}
    told = metrics.render().decode()
    assert 'hmi_plan_batches_total{kind="fits",setting="off"}' in told
    assert 'hmi_plan_batches_total{kind="ordinary",setting="off"}' in told
    assert "hmi_plan_failures_total 0.0" in told


@pytest.mark.parametrize(
    ("stages", "kind", "names"),
    [
        ("none", RoundRobin, []),
        ("exits", RoundRobin, ["exit"]),
        ("cascades", RoundRobin, ["cascade"]),
        ("tokens", ParetoPlanner, ["tokens"]),
        ("auto", ParetoPlanner, ["exit", "cascade", "tokens"]),
    ],
)
def test_the_setting_chooses_the_stages_of_the_planner(
    stages: str, kind: type[Any], names: list[str], home: Home
) -> None:
    planner, costs = planner_of(replace(home.settings, stages=stages), Layout(home.settings.data))
    assert type(planner) is kind
    assert [stage.name for stage in planner.stages] == names
    assert (costs is not None) == ("tokens" in names)
    engine = home.engine(stages=stages)
    assert (engine.exits is not None) == ("exit" in names)


async def profiled(home: Home, layout: Layout) -> tuple[StageCosts, Any, list[BatchKey]]:
    """Costs that use this folder, a bundle of a root of theirs, and the keys that are renewed."""
    layout.root("tiny", "r1").mkdir(parents=True, exist_ok=True)
    costs, keys = StageCosts(TokenAdaptation(), StageProfiles(layout)), list[BatchKey]()
    costs.renewed = keys.append
    bundle = await bundle_of(home, MOOD)
    key = replace(bundle.key, root=("tiny", "r1"))
    return costs, SimpleNamespace(key=key, executor=bundle.executor, root=bundle.root), keys


async def test_costs_are_measured_once_and_kept(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    layout, runs = Layout(tmp_path), list[str]()
    measure = Lab.measure
    monkeypatch.setattr("hmi.engine.adaptive.stage_costs.NICE", 0)
    monkeypatch.setattr("hmi.stages.planning.profile.ROUNDS", 1)
    monkeypatch.setattr(Lab, "measure", lambda lab, **how: runs.append("run") or measure(lab, **how))
    for known in (0, 1, 1):
        costs, bundle, keys = await profiled(home, layout)
        assert costs.of(bundle.key) is None
        costs.want(bundle)
        costs.want(bundle)
        await until(lambda keys=keys: len(keys) == 2)
        found = costs.of(bundle.key)
        assert found is not None
        assert found.seconds
        # One round may see no difference between texts.
        assert found.batch + found.row + found.square + found.text > 0
        assert len(runs) == 1, f"{known} were known"
        costs.close()
    (path,) = tmp_path.glob("profiles/tiny/r1/stages/*.json")
    path.write_text(path.read_text().replace("merge", "purge"))
    assert StageProfiles(layout).get("tiny", "r1", fingerprint()) is None
    assert "it has to be measured again" in caplog.text
    costs, bundle, keys = await profiled(home, layout)
    costs.want(bundle)
    await until(lambda: len(keys) == 2)
    costs.close()
    assert len(runs) == 2


async def test_a_server_that_stops_does_not_wait_for_a_measurement(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = list[bool]()

    def waits(lab: Lab, *, ended: Any) -> Any:
        ended.wait()
        ended_by.append(True)
        raise MeasurementEnded

    ended_by = ended
    monkeypatch.setattr(Lab, "measure", waits)
    costs, bundle, keys = await profiled(home, Layout(tmp_path))
    costs.want(bundle)
    await asyncio.to_thread(costs.close)
    assert ended == [True]
    assert keys == []


async def loaded(home: Home, monkeypatch: pytest.MonkeyPatch, metrics: Metrics | None = None) -> Engine:
    """An engine whose planner believes that much waits, and whose model may be merged."""
    engine = home.engine(metrics, None, stages="tokens", precision="fp32")
    bundle = await engine._loader.load(MOOD, exact=False)
    version = bundle.version.model_copy(update={"tokens": PROFILED})
    allows = replace(bundle, version=version, objective=Objective(agreement_under_load=0.9))
    monkeypatch.setattr(engine._loader, "now", lambda model, exact: allows)
    monkeypatch.setattr(engine._planning, "look_at", lambda admitted: None)
    plan = engine._planning._planner.plan

    def under_load(candidates: Any, now: float) -> Any:
        loaded = [replace(each, waiting_s=10.0) for each in candidates]
        return plan(loaded, now)

    monkeypatch.setattr(engine._planning._planner, "plan", under_load)
    return engine


async def test_a_loaded_server_adapts_tokens_of_models_that_allow_it(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deadlines that only hold with fewer rows: provenance has the setting that each text ran under."""
    metrics = Metrics()
    engine = await loaded(home, monkeypatch, metrics)
    texts = [TextRequest(MOOD, " ".join(home.covered[i : i + 3]), provenance=True) for i in range(3)]
    found = await answers(engine, texts)
    stages = [each[0].provenance.stages for each in found]
    assert {each.get("tokens") for each in stages} == {"merge 50%"}
    assert all("merge 50%" in (each[0].provenance.planner or "") for each in found)
    told = metrics.render().decode()
    assert 'hmi_plan_batches_total{kind="hurried",setting="merge 50%"}' in told
    assert 'hmi_execution_stage_inputs_total{setting="merge 50%",stage="tokens"} 6.0' in told


async def test_costs_are_measured_for_any_text_with_an_aim(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deadlines are planned by costs, whether or not the model may be adapted."""
    wanted: list[ModelId] = []
    monkeypatch.setattr(StageCosts, "want", lambda costs, bundle: wanted.append(bundle.model))
    plain = TextRequest(MOOD, home.covered[0])
    await answers(home.engine(None, None, precision="fp32"), [plain, replace(plain, utility=0.5)])
    assert wanted == [MOOD] * 2


@pytest.mark.parametrize("where", ["hook.merged", "stage.MergeHook"])
async def test_a_fault_of_token_adaptation_costs_no_answer(
    where: str, home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The batch fails if rows cannot be merged, and also if the hook cannot be made."""
    text = TextRequest(MOOD, " ".join(home.covered[:3]), scores=True, provenance=True)
    (plain, _) = await answers(home.engine(None, None, stages="none", precision="fp32"), [text])
    engine = await loaded(home, monkeypatch)
    monkeypatch.setattr(f"hmi.stages.token_adaptation.{where}", lambda *a: 1 / 0)
    for (found,) in await answers(engine, [text]):
        assert found.scores == plain[0].scores
        assert found.provenance.stages == {}
    assert "runs again without them" in caplog.text
