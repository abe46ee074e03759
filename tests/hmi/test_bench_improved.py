"""The table of second versions counts what was published, and what scored under the first version."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hmi.bench.quality.arms import hbert
from hmi.bench.quality.cells import RECIPE_VERSION, Budget
from hmi.bench.quality.improved import _rate
from hmi.bench.quality.improving import ImprovedPlan, about, chosen_columns, small, summary
from hmi.bench.quality.runs import Runs
from hmi.bench.quality.tasks import TaskRows
from hmi.errors import InvalidInput
from hmi.model.tasks.sequence import Pair
from hmi.training.data.rows import Row
from hmi.training.defaults import ALIGNED_LR, default_module
from hmi.training.plan import plan_training
from hmi.training.recipe import RECIPE

ROOT: Any = SimpleNamespace(info=SimpleNamespace(source={"sha256": "a" * 64}, files={"upper": "b" * 64}))


def plan(folder: Path, **more: Any) -> ImprovedPlan:
    return ImprovedPlan(
        folder, folder, folder / "runs.jsonl", tasks=("sst2",), budget=Budget(seeds=2), **more
    )


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
    its = plan(tmp_path, columns=("by_default", "own_teacher"))
    runs = Runs(its.runs)
    default, own = chosen_columns(its)
    done = {"task": "sst2", "lr": 0.0, "test": True}
    runs.put({**done, **about(its, default, ROOT), "seed": 0}, chosen(0.84, 0.80, 2))
    runs.put({**done, **about(its, default, ROOT), "seed": 1}, chosen(0.78, 0.80, 2))
    runs.put({**done, **about(its, own, ROOT), "seed": 0}, {"dev": 0.8, "test": 0.82})
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
    assert (row["published"], row["worse"], row["teachers_s"]) == ("2/2", 1, 100)


def test_a_teacher_stands_for_dedicated_copies_that_were_not_trained(tmp_path: Path) -> None:
    its = plan(tmp_path, columns=("by_default",))
    runs = Runs(its.runs)
    [default] = chosen_columns(its)
    result = chosen(0.84, 0.80, 2)
    result["teachers"]["own"]["test"] = 0.875
    runs.put({"task": "sst2", "lr": 0.0, "test": True, **about(its, default, ROOT), "seed": 0}, result)
    (row,) = summary(its, ROOT)
    assert (row["dedicated"], row["by_default ÷"]) == (87.5, 0.96)


def test_a_tenant_with_few_rows_is_compared_with_what_others_train_on_them(tmp_path: Path) -> None:
    names = {column.name for column in chosen_columns(plan(tmp_path, rows=20))}
    assert names - {column.name for column in chosen_columns(plan(tmp_path))} == {
        "dedicated_plain",
        "contrasted",
        "frozen",
    }
    with pytest.raises(InvalidInput, match="contrasted"):
        chosen_columns(plan(tmp_path, columns=("contrasted",)))


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
