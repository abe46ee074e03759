"""The cases that run servers of their own, as short as they can be, on a tiny root."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.cases.background import figures
from bench.cases.background import run as background
from bench.cases.fleet import run as fleet
from bench.cases.floods import run as floods
from bench.cases.serve import http_fleet
from bench.cases.soak import ground
from bench.cases.soak import run as soak
from bench.cases.soak.figures import IDLE
from bench.harness.report import Figure
from tests.bench.lab import tiny_plan
from tests.hmi.model.test_decoder import write_language_model


def _by_id(rows: list[Figure]) -> dict[str, float]:
    found = {row.id: row.value for row in rows}
    return {name: value for name, value in found.items() if value is not None}


@pytest.mark.slow
def test_a_flood_is_measured_beside_the_control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_fleet, "QUICK", tiny_plan(tmp_path))
    monkeypatch.setattr(floods, "SETTLE_S", 0.2)
    found = _by_id([*floods.run(floods.FloodPlan(("short",), 1.0, 1, True), lambda _: None)])
    for name in ("short", "machine_short"):
        assert found[f"{name}_failed"] == 0
        assert found[f"{name}_p99"] >= found[f"{name}_p50"] > 0
        assert found[f"{name}_memory_over_before"] > 0


@pytest.mark.slow
def test_the_start_of_a_server_of_many_tenants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_fleet, "QUICK", tiny_plan(tmp_path))
    plan, reports = fleet.FleetPlan(tenants=3, starts=1, settled_s=0.1), []
    found = _by_id([*fleet.run(plan, tmp_path / "kept", reports.append)])
    assert found["ready"] > 0 < found["first_answer"]
    assert found["ready_memory"] > found["ready_own_memory"] > 0
    assert (tmp_path / "kept" / "bench-serve").is_dir()
    assert reports[-1] == "start 1 of 1"


@pytest.mark.slow
def test_a_soak_finds_no_wrong_answer_or_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_fleet, "QUICK", tiny_plan(tmp_path))
    source = write_language_model("llama", tmp_path / "writes", max_position_embeddings=512)
    sizes = {"minutes": 0.1, "tenants": 3, "texts": 3, "choice_s": 0.0, "load_s": (1.0, 2.0)}
    plan = replace(ground.QUICK, source=str(source), **sizes)
    rows = {row.id: row for row in soak.run(plan, lambda _: None, tmp_path / "soak.jsonl")}
    for name in ("wrong", "lost", "improper", "acknowledged_changes_lost", "tracebacks", *IDLE):
        assert rows[name].value == 0, rows[name].why
    for name in ("answers", "texts", "streams_ended", "changes_versions"):
        assert rows[name].value, name
    ended = sum(row.value for name, row in rows.items() if name.startswith("streams_") and row.value)
    assert ended == 2 * rows["streams_accepted"].value  # type: ignore[operator]
    for way in ("SIGKILL", "SIGTERM"):
        assert rows[f"servers_ended_by_{way}"].value == 1
        assert rows[f"wrong_exit_after_{way}"].value == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("neighbour", "names"),
    [(background.TRAINING, ("30_paced", "saturated_nice_only")), (background.WRITING, ("30_writers",))],
    ids=["training", "writing"],
)
def test_each_load_is_measured_with_and_without_its_neighbour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, neighbour: background.Neighbour, names: tuple[str, ...]
) -> None:
    monkeypatch.setattr(http_fleet, "QUICK", tiny_plan(tmp_path))
    if neighbour.source:
        source = write_language_model("llama", tmp_path / "writes", max_position_embeddings=512)
        neighbour = replace(neighbour, source=str(source))
    plan = background.BackgroundPlan(0.3, 1, (0.3,), 4, 2, 400, 0.1, neighbour, quick=True)
    capacity, pairs = background.run(plan, lambda _: None)
    found = _by_id([*figures.rows(plan.neighbour, capacity, pairs)])
    for name in names:
        assert found[f"background_{name}_failed"] == 0
        assert found[f"background_{name}_cpu_over_none"] > 0
