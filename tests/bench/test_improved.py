"""The table of second versions counts what was published, and what scored under the first version."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.cases.quality import cell_queue
from bench.cases.quality.arms import hbert
from bench.cases.quality.cell_queue import small
from bench.cases.quality.cells import RECIPE_VERSION
from bench.cases.quality.improved import _rate
from bench.cases.quality.improving import Cell, ImprovedPlan, check, summary
from bench.cases.quality.runs import RunFile
from bench.cases.quality.tasks import TaskRows
from hmi.errors import HmiError, InvalidInput
from hmi.model.tasks.sequence import Pair
from hmi.training.data.rows import Row
from hmi.training.fit.plan import plan_training
from hmi.training.plans.defaults import ALIGNED_LR, default_module
from hmi.training.plans.recipe import RECIPE

ROOT: Any = SimpleNamespace(info=SimpleNamespace(source={"sha256": "a" * 64}, files={"upper": "b" * 64}))


def plan(folder: Path, *cells: str, **more: Any) -> ImprovedPlan:
    return ImprovedPlan(folder, folder, folder / "runs.jsonl", tuple(map(Cell.parse, cells)), **more)


def done(its: ImprovedPlan, *results: Any) -> None:
    """Store a result for each cell, in order."""
    runs = RunFile(its.runs)
    for cell, result in zip(its.cells, results, strict=True):
        runs.put(its.spec(cell, ROOT), result)


def chosen(test: float, first: float, published: int) -> dict[str, Any]:
    return {
        "dev": 0.8,
        "test": test,
        "cpu_s": 50.0,
        "first": {"test": first, "cpu_s": 40.0},
        "second": {"cpu_s": 60.0},
        "teachers": {"own": {"weight": 1.0, "cpu_s": 100.0}},
        "sure": 0.95,
        "published": published,
        "test_rows": 1_000,
    }


def test_the_table_has_both_versions_beside_dedicated_copies_and_counts_the_worse(tmp_path: Path) -> None:
    its = plan(tmp_path, "sst2:2000:0:by_default", "sst2:2000:1:by_default", "sst2:2000:0:own_teacher")
    done(its, chosen(0.84, 0.80, 2), chosen(0.78, 0.80, 2), {"dev": 0.8, "test": 0.82})
    runs = RunFile(its.runs)
    for rate, dev, test, source in (
        (1e-4, 0.9, 0.9, "a" * 12),
        (2e-4, 0.8, 0.5, "a" * 12),
        (3e-4, 0.99, 0.2, "c" * 12),  # of another source
    ):
        spec = {"task": "sst2", "arm": "dedicated", "recipe": RECIPE_VERSION, "source": source, "lr": rate}
        runs.put({**spec, "seed": 0, "test": True}, {"dev": dev, "test": test})
    (row,) = summary(its, ROOT)
    assert (row["dedicated"], row["first"], row["by_default"]) == (90.0, "80.0 ± 0.0", "81.0 ± 3.0")
    assert (row["by_default ÷"], row["own_teacher"], row["own_teacher ÷"]) == (0.9, "82.0", 0.911)
    assert (row["published"], row["worse"], row["teachers_s"]) == ("2 2", 1, 100)


def test_the_table_has_the_version_that_computes_all_layers(tmp_path: Path) -> None:
    its = plan(tmp_path, "sst2:2000:0:by_depth")
    result = chosen(0.86, 0.80, 3)
    result["second"]["test"] = 0.82
    done(its, {**result, "deep": {"test": 0.86, "cpu_s": 70.0}})
    (row,) = summary(its, ROOT)
    assert [row[name] for name in ("first", "second", "deep", "by_depth")] == ["80.0", "82.0", "86.0", "86.0"]
    assert (row["published"], row["deep_s"]) == ("3", 70)


def test_a_teacher_stands_for_dedicated_copies_that_were_not_trained(tmp_path: Path) -> None:
    its = plan(tmp_path, "sst2:2000:0:by_default")
    result = chosen(0.84, 0.80, 2)
    result["teachers"]["own"]["test"] = 0.875
    done(its, result)
    (row,) = summary(its, ROOT)
    assert (row["dedicated"], row["by_default ÷"]) == (87.5, 0.96)


def test_each_draw_of_few_rows_has_a_row_of_its_own(tmp_path: Path) -> None:
    its = plan(tmp_path, "sst2:20:0:frozen", "sst2:20:0:frozen:1", "sst2:20:0:dedicated_plain:1")
    done(its, {"dev": 0.5, "test": 0.6}, {"dev": 0.5, "test": 0.7}, {"dev": 0.5, "test": 0.5})
    first, second = summary(its, ROOT)
    assert (first["rows"], first["draw"], first["frozen"], "dedicated" in first) == (20, 0, "60.0", False)
    assert (second["draw"], second["frozen"], second["frozen ÷"]) == (1, "70.0", 1.4)


@pytest.mark.parametrize(
    "cell",
    ["sst2", *(f"sst2:{rest}" for rest in ["19:0:a", "20:-1:a", "5000:0:a", "2000:0:a:1", "20:0:a:1:2"])],
)
def test_a_cell_that_is_none_is_refused(cell: str) -> None:
    with pytest.raises(InvalidInput, match="no cell"):
        Cell.parse(cell)


def test_a_misspelt_name_is_refused_before_anything_runs(tmp_path: Path) -> None:
    check(plan(tmp_path, "sst2:20:0:contrasted"))
    for cell, name in (("sst2:2000:0:contrasted", "contrasted"), ("sst3:20:0:frozen", "sst3")):
        with pytest.raises(InvalidInput, match=name):
            check(plan(tmp_path, cell))


def work(plan: ImprovedPlan, setting: Any, folder: Any, cells: Any, told: Any, spent: Any) -> None:
    """Stands for the training of cells: the real one takes minutes."""
    for cell in cells:
        with spent.get_lock():
            spent.value += 10.0
        if cell.column == "frozen":
            sys.exit(3)
        told.put((cell, (cell.task, 1, 2)))
        told.put((cell, {"dev": 0.5, "test": 0.6}))
    told.close()
    told.join_thread()


@pytest.mark.slow
def test_the_queue_skips_what_is_done_and_ends_with_its_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell_queue, "_work", work)
    sets = [("sst2", 0), ("sst2", 1), ("sick", 0), ("rte123", 0)]
    names = [f"{task}:2000:{seed}:by_default" for task, seed in sets]
    its = plan(tmp_path, *names, at_once=2)
    done(plan(tmp_path, names[0]), {"dev": 0.1, "test": 0.1})
    shown = list[str]()

    def run(its: ImprovedPlan) -> list[tuple[str, int]]:
        nothing: Any = None
        found = cell_queue.run(its, nothing, tmp_path, ROOT, lambda what, step, total: shown.append(what))
        return sorted((spec["task"], spec["seed"]) for spec, _ in found)

    assert run(replace(its, at_once=1, cpu_s=5.0)) == [("sst2", 1)], "what begins within the budget"
    assert run(its) == [("rte123", 0), ("sick", 0)]
    assert run(its) == []
    assert {"sst2", "sick", "rte123"} <= set(shown)
    with pytest.raises(HmiError, match="exit code 3"):
        run(plan(tmp_path, "sst2:20:0:frozen"))


def test_columns_are_trained_at_the_services_rate() -> None:
    pairs = Pair(("entailment", "neutral"))
    problem: Any = SimpleNamespace(kind=pairs, examples={"train": range(2_000)})
    service = plan_training(RECIPE, pairs, 2_000)
    assert service.aligned
    assert _rate(problem, hbert(default_module(paired=True))) == service.lr == ALIGNED_LR


def test_of_few_rows_some_are_held_out_as_the_service_does() -> None:
    rows = [Row(f"text {i}", "ab"[i % 2]) for i in range(200)]
    whole = TaskRows(rows[:100], rows[100:], [])
    found = small(whole, 20)
    assert len(found.train) + len(found.dev) == 20
    assert len(found.dev) == 4
    assert small(whole, 2_000) is whole
    again, other = small(whole, 20, 1), small(whole, 20, 2)
    assert again == small(whole, 20, 1)
    assert {row.text for row in again.train} != {row.text for row in other.train}
