"""The ledger keeps what ended and drops what a crash cut off; the table is its runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from hmi.bench.quality.ledger import Ledger
from hmi.bench.quality.tables import markdown, table
from hmi.bench.quality.tasks import TASKS, named
from hmi.errors import Damaged, InvalidInput


def test_a_run_is_there_after_a_restart_and_the_last_of_equal_ones_counts(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "runs.jsonl"
    first = Ledger(path)
    assert first.get({"task": "a", "lr": 0.1}) is None
    first.put({"task": "a", "lr": 0.1}, {"dev": 0.5})
    first.put({"task": "b"}, {"dev": 0.7})
    first.put({"lr": 0.1, "task": "a"}, {"dev": 0.6})
    again = Ledger(path)
    assert again.get({"task": "a", "lr": 0.1}) == {"dev": 0.6}
    assert sorted(spec["task"] for spec, _ in again.all()) == ["a", "b"]


def test_a_line_that_was_cut_off_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    Ledger(path).put({"task": "a"}, 1)
    with path.open("ab") as file:
        file.write(b'{"spec": {"task": "b"}, "res')
    ledger = Ledger(path)
    assert ledger.get({"task": "b"}) is None
    ledger.put({"task": "c"}, 3)
    assert [result for _, result in Ledger(path).all()] == [1, 3]


def test_a_whole_line_that_is_no_run_is_named(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text('{"spec": {}, "result": 1}\n{"spec": {}}\n', encoding="utf-8")
    with pytest.raises(Damaged, match="line 2"):
        Ledger(path)


def test_the_table_has_means_errors_and_ratios_of_test_scores_alone() -> None:
    def run(arm: str, seed: int, score: float, *, test: bool = True) -> tuple[dict[str, object], dict[str, float]]:
        spec: dict[str, object] = {"task": "t", "arm": arm, "seed": seed, "lr": 1e-3}
        return {**spec, **({"test": True} if test else {})}, {"dev": 0.99, "test": score}

    runs = [run("dedicated", 0, 0.8), run("dedicated", 1, 0.8), run("hbert", 0, 0.7), run("hbert", 1, 0.8)]
    runs.append(run("hbert", 2, 0.1, test=False))
    found = table(runs, ["t", "u"], ["dedicated", "hbert"])
    score = found.scores["t"]["hbert"]
    assert (round(score.mean, 6), round(score.error or 0, 6), score.seeds) == (75.0, 5.0, 2)
    assert found.ratio("t", "hbert") == pytest.approx(0.9375)
    assert found.ratio("u", "hbert") is None
    assert found.mean_ratio("hbert") == pytest.approx(0.9375)
    assert "75.0 ± 5.0 (0.938)" in markdown(found)


def test_tasks_by_name() -> None:
    assert named(()) == list(TASKS)
    assert [task.name for task in named(["sick"])] == ["sick"]
    with pytest.raises(InvalidInput, match="bc5cdr"):
        named(["none"])
