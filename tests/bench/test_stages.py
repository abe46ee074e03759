"""`bench stages` on a tiny root: every section measures, and its figures are those of what was asked."""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from bench.__main__ import bench
from bench.cases.stages.arrivals import poisson, read_trace, traced
from bench.cases.stages.exits import mixed, static
from bench.cases.stages.home import measured
from bench.cases.stages.plan import QUICK, SECTIONS, StagesPlan
from bench.cases.stages.records import RampRecords
from bench.cases.stages.tasks import drifted, load
from bench.harness.report import Figure
from hmi.api.process.local import LocalCalls
from hmi.errors import InvalidInput
from hmi.jobs.bodies import find_bodies
from hmi.jobs.runtime.process import DONE, run_job
from tests.tiny import random_texts

TRAINING = {"epochs": 1, "lr": 0.01, "module": {"kind": "lora", "rank": 2}}


class Told:
    """A report that keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.texts = 0

    def say(self, what: str) -> None:
        self.said.append(what)

    def did(self, texts: int) -> None:
        self.texts += texts


def write_set(folder: Path, seed: int) -> None:
    folder.mkdir(parents=True)
    rows = [
        {"text": f"{text} {mood}", "label": mood}
        for text in dict.fromkeys(random_texts(480, seed, low=3, high=9))
        for mood in [random.Random(text).choice(["good", "bad"])]
    ]
    for part, some in (("train", rows[:320]), ("test", rows[320:])):
        with gzip.open(folder / f"{part}.jsonl.gz", "wt") as file:
            file.write("".join(json.dumps(row) + "\n" for row in some))


def write_trace(folder: Path) -> None:
    folder.mkdir()
    at = np.cumsum(np.random.default_rng(0).exponential(1.0, 200))
    lines = [f"2023-11-16 18:{int(s) // 60:02}:{s % 60:010.7f},374,44" for s in at]
    with gzip.open(folder / "trace.csv.gz", "wt") as file:
        file.write("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]))


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> StagesPlan:
    folder = tmp_path_factory.mktemp("bench-stages")
    write_set(folder / "sets" / "first_set", seed=0)
    write_trace(folder / "traces")
    sizes = {**QUICK, "tasks": ("first_set",), "root": "tiny", "training": TRAINING}
    return StagesPlan(folder / "sets", folder / "traces", **sizes)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs run in this process, as their own would run them, and no figure is measured twice. Each process
    would spend seconds on imports."""
    monkeypatch.setattr("bench.cases.stages.shards.REPEATS", 1)

    def run(calls: LocalCalls, job: str, on_progress: object) -> None:
        with monkeypatch.context() as signals:
            signals.setattr("signal.signal", lambda *_: None)
            assert run_job(calls.services.settings, job, find_bodies(None)) == DONE

    monkeypatch.setattr(LocalCalls, "run", run)


@pytest.mark.slow
@pytest.mark.usefixtures("in_process")
def test_all_sections_measure(plan: StagesPlan, folder: Path) -> None:
    told = Told()
    found: dict[str, Figure] = {row.id: row for row in measured(plan, folder, told)}
    for stream in ("stationary", "drift"):
        assert found[f"first_set_{stream}_agreement"].runs == plan.texts
        assert found[f"first_set_{stream}_without_stages_unlike_recorded"].value == 0
        assert found[f"first_set_{stream}_p50_change"].runs == plan.texts - plan.warm
    for server in ("none", "auto"):
        assert found[f"overhead_{server}_answers_that_differ"].value == 0
    assert found["isolation_wrong"].value == 0
    assert found["first_set_inside_agreement"].runs == plan.golds
    assert found["first_set_shuffled_ramps_throughput"].runs == plan.runs
    assert found["first_set_tiny_gamma_-50_agreement"].runs == plan.golds
    for name in ("utility_poisson_today", "utility_bursty_tokens", "planner_poisson_together"):
        answered = found[f"{name}_answered"].value
        assert answered is not None
        assert 0.0 <= answered <= 1.0
    assert {what.split(":")[0].split(",")[0] for what in told.said} >= set(SECTIONS)
    assert told.texts > 10 * plan.texts


def test_unknown_sections_and_sets_are_named(plan: StagesPlan) -> None:
    said = CliRunner().invoke(bench, ["stages", "--sets", str(plan.sets), "--only", "rain"], obj=None)
    assert said.exit_code != 0
    with pytest.raises(InvalidInput, match="use more than 40"):
        replace(plan, texts=40)
    with pytest.raises(InvalidInput, match="no train"):
        load("second_set", plan)


def test_no_row_is_in_two_parts_and_drift_changes_texts(plan: StagesPlan) -> None:
    rows = load("first_set", plan)
    parts = [
        {str(row.text) for row in part}
        for part in (rows.labelled, rows.unlabelled, rows.profiled, rows.stream)
    ]
    assert [len(part) for part in parts] == [60, 40, 210, 50]
    assert len(set().union(*parts)) == sum(map(len, parts))
    moved = [drifted(text, i) for i, text in enumerate(parts[3])]
    assert all(sorted(a) == sorted(b) for a, b in zip(moved, parts[3], strict=True))
    assert sum(a != b for a, b in zip(moved, parts[3], strict=True)) > 37


def test_arrivals_have_the_rate_asked_for_and_the_trace_its_bursts(plan: StagesPlan) -> None:
    stamps = read_trace(plan.traces)
    assert stamps is not None
    assert len(stamps) == 200
    for times in (poisson(4_000, 50.0, 1), traced(stamps, 4_000, 50.0, 1)):
        assert (np.diff(times) >= 0).all()
        assert times[-1] == pytest.approx(80.0, rel=0.1)
    gaps, scaled = np.diff(stamps), np.diff(traced(stamps, 200, 50.0, 1))
    assert scaled.std() / scaled.mean() == pytest.approx(gaps.std() / gaps.mean(), rel=0.1)


def recorded(texts: int, wrong: float, sure: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The uncertainty and the agreement of one ramp, which is sure of a part of the texts, and errs on a part
    of these."""
    rng = np.random.default_rng(seed)
    uncertainty = np.where(rng.random((texts, 1)) < sure, 0.1, 0.9)
    return uncertainty, ~((uncertainty < 0.5) & (rng.random((texts, 1)) < wrong))


def test_static_thresholds_fail_once_ramps_err_at_the_same_confidence(plan: StagesPlan) -> None:
    (sound, a), (broken, b) = recorded(2_100, 0.001, 0.6, 0), recorded(900, 0.2, 0.6, 1)
    records = RampRecords((2,), 4, np.concatenate([sound, broken]), np.concatenate([a, b]), ["a"] * 3_000)
    misled = records.misled(512, 0.01)
    assert all(records.uncertainty[i, 0] < 0.5 and not records.agrees[i, 0] for i in np.flatnonzero(misled))
    rows = {row.id: row for row in static("x_drift", StagesPlan(plan.sets), records)}
    assert rows["x_drift_static_agreement_after_drift"].value == pytest.approx(1 - 0.6 * 0.2, abs=0.03)
    assert rows["x_drift_static_agreement"].ok is False


def test_a_drift_has_a_part_of_texts_that_mislead() -> None:
    texts = mixed([f"text {i}" for i in range(1_000)], ["hard"])
    assert texts.count("hard") == pytest.approx(150, abs=40)
    assert mixed(["a", "b"], []) == ["a", "b"]
