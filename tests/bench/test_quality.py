"""The ledger keeps finished runs and drops what a crash cut off; the table shows the ledger's runs."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.cases.quality import tasks, tenants
from bench.cases.quality.arms import hbert
from bench.cases.quality.cells import next_rate
from bench.cases.quality.plots import lines_svg, ratios_svg
from bench.cases.quality.run import QualityPlan, chosen_arms, title
from bench.cases.quality.runs import RunFile
from bench.cases.quality.setting import Amount, PlotSetting
from bench.cases.quality.tables import BEST, best_rate, markdown, table, with_best
from bench.cases.quality.tasks import TASKS, named, unlabelled
from bench.cases.quality.tenants import TenantsPlan, by_number, columns_of
from hmi.core import ModuleSpec
from hmi.errors import Damaged, InvalidInput


def test_a_run_is_there_after_a_restart_and_the_last_of_equal_ones_counts(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "runs.jsonl"
    first = RunFile(path)
    assert first.get({"task": "a", "lr": 0.1}) is None
    first.put({"task": "a", "lr": 0.1}, {"dev": 0.5})
    first.put({"task": "b"}, {"dev": 0.7})
    first.put({"lr": 0.1, "task": "a"}, {"dev": 0.6})
    again = RunFile(path)
    assert again.get({"task": "a", "lr": 0.1}) == {"dev": 0.6}
    assert sorted(spec["task"] for spec, _ in again.all()) == ["a", "b"]


def test_a_line_that_was_cut_off_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    RunFile(path).put({"task": "a"}, 1)
    with path.open("ab") as file:
        file.write(b'{"spec": {"task": "b"}, "res')
    ledger = RunFile(path)
    assert ledger.get({"task": "b"}) is None
    ledger.put({"task": "c"}, 3)
    assert [result for _, result in RunFile(path).all()] == [1, 3]


def test_a_whole_line_that_is_no_run_is_named(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text('{"spec": {}, "result": 1}\n{"spec": {}}\n', encoding="utf-8")
    with pytest.raises(Damaged, match="line 2"):
        RunFile(path)


def test_the_table_has_means_errors_and_ratios_of_test_scores_at_the_rate_that_dev_chose() -> None:
    def ran(
        arm: str, seed: int, score: float, lr: float = 1e-3, dev: float = 0.9, **more: object
    ) -> tuple[dict[str, object], object]:
        return {"task": "t", "arm": arm, "seed": seed, "lr": lr, "test": True, **more}, {
            "dev": dev,
            "test": score,
        }

    runs = [ran("dedicated", 0, 0.8), ran("dedicated", 1, 0.8), ran("hbert", 0, 0.7), ran("hbert", 1, 0.8)]
    runs.append(({"task": "t", "arm": "hbert", "seed": 2, "lr": 1e-3}, {"dev": 0.1}))  # not tested
    runs.append(ran("hbert", 0, 0.1, lr=2e-3, dev=0.8))  # another learning rate was better on dev
    runs.append(ran("hbert", 0, 0.1, rows=100))  # belongs to another column
    columns: dict[str, dict[str, object]] = {"dedicated": {"arm": "dedicated"}, "hbert": {"arm": "hbert"}}
    found = table(runs, {"t": columns, "u": columns})
    score = found.scores["t"]["hbert"]
    assert (round(score.mean, 6), round(score.error or 0, 6), score.seeds) == (75.0, 5.0, 2)
    assert found.ratio("t", "hbert") == pytest.approx(0.9375)
    assert found.ratio("u", "hbert") is None
    assert found.mean_ratio("hbert") == pytest.approx(0.9375)
    assert "75.0 ± 5.0 (0.938)" in markdown(found)
    assert table(runs, {"t": columns}, "dev").scores["t"]["hbert"].seeds == 3
    assert ratios_svg(found).count("<rect") == 1 + 1 + 1  # background, legend, one bar


def test_the_best_column_has_what_was_best_on_dev_not_on_test() -> None:
    def ran(task: str, arm: str, dev: float, test: float) -> tuple[dict[str, object], object]:
        return {"task": task, "arm": arm, "seed": 0, "lr": 1e-3, "test": True}, {"dev": dev, "test": test}

    runs = [
        ran("t", "a", 0.8, 0.7),
        ran("t", "b", 0.9, 0.6),
        ran("u", "a", 0.5, 0.4),
        ran("u", "dedicated", 0.6, 0.8),
    ]
    columns: dict[str, dict[str, object]] = {arm: {"arm": arm} for arm in ("dedicated", "a", "b", "shared")}
    plain = table(runs, {"t": columns, "u": columns})
    found = with_best(plain, ["a", "b"])
    assert found.arms == ("dedicated", "a", "b", BEST, "shared")
    assert found.scores["t"][BEST] == plain.scores["t"]["b"]
    assert found.mean_ratio(BEST) == found.ratio("u", BEST) == pytest.approx(0.5)
    assert with_best(plain, ["a", "shared"]) == plain


def test_a_column_has_the_services_module_for_the_task_or_the_named_ones(tmp_path: Path) -> None:
    def modules(plan: QualityPlan, name: str) -> list[str]:
        (task,) = named([name])
        return [title(arm.module) for arm in chosen_arms(plan, task) if arm.module]

    plan = QualityPlan(tmp_path, tmp_path, arms=("hbert", "shared"))
    assert (modules(plan, "sick"), modules(plan, "sst2")) == (["sequential 79"], ["lora 8"])
    two = replace(plan, modules=(ModuleSpec(), ModuleSpec(kind="ln")))
    assert modules(two, "sick") == modules(two, "sst2") == ["lora 8", "ln 1"]


def test_tenants_of_pairs_are_refused(tmp_path: Path) -> None:
    plan, models = TenantsPlan(tmp_path, tmp_path, ("sst2", "sick")), SimpleNamespace()
    with pytest.raises(InvalidInput, match="tasks of pairs"):
        next(tenants.run(plan, hbert(ModuleSpec()), 1e-3, {}, models, lambda *_: None))  # type: ignore[arg-type]


def test_of_equal_rates_the_lowest_is_best() -> None:
    assert best_rate({1e-3: 0.5, 2e-3: 0.7, 3e-3: 0.7}) == 2e-3


@pytest.mark.parametrize(
    ("scores", "tried"),
    [
        ({1: 0.9, 2: 0.8, 3: 0.7, 4: 0.6}, [2, 3, 1]),
        ({1: 0.7, 2: 0.8, 3: 0.7, 4: 0.6}, [2, 3, 1]),
        ({1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4}, [2, 3, 4]),
        ({1: 0.1, 2: 0.2, 3: 0.4, 4: 0.3}, [2, 3, 4]),
    ],
)
def test_rates_are_tried_on_both_sides_of_the_best(scores: dict[float, float], tried: list[float]) -> None:
    dev: dict[float, float] = {}
    while (rate := next_rate([1, 2, 3, 4], dev)) is not None:
        dev[rate] = scores[rate]
    assert list(dev) == tried
    assert next_rate([7], {}) == 7
    assert next_rate([7], {7: 0.5}) is None


def test_tasks_by_name() -> None:
    assert named(()) == list(TASKS)
    assert [task.name for task in named(["sick"])] == ["sick"]
    with pytest.raises(InvalidInput, match="bc5cdr"):
        named(["none"])


def test_scores_by_number_of_tenants_need_all_of_them() -> None:
    runs = [({"arm": "hbert", "task": "t", "tenant": i, "rows": 9}, {"test": i / 10}) for i in (0, 1, 3)]
    found = by_number(columns_of(runs)["hbert"], (1, 2, 3))
    assert found == {1: 0.0, 2: pytest.approx(5.0)}
    runs.append(({"arm": "hbert", "task": "t", "tenant": 0, "rows": 8}, {"test": 0.9}))
    assert {name: len(of) for name, of in columns_of(runs).items()} == {
        "hbert (rows 9)": 3,
        "hbert (rows 8)": 1,
    }
    drawn = lines_svg("scores", {"hbert": found, "shared": {1: 3.0}})
    assert drawn.count("<polyline") == 2
    assert drawn.count("<circle") == 3


def test_a_setting_names_its_plots_by_what_they_are_made_of(tmp_path: Path) -> None:
    setting = PlotSetting(tmp_path, tmp_path, Amount(megabytes=70), Amount(alpha=12.5))
    biomedical, captions = named(["bc5cdr", "sick"])
    assert setting.branch(captions) == "quality/general-b70"
    assert setting.branch(biomedical) == "quality/general-b70/biomedical-a12-5"
    assert [corpus for corpus, _, _ in setting.branches(biomedical)] == ["general", "biomedical"]
    assert Amount(megabytes=70).body() == {"pretrain": False, "options": {"budget_bytes": 70_000_000}}
    pretrained = Amount(alpha=12.5, pretrain=30)
    assert pretrained.body() == {"alpha": 12.5, "pretrain": True, "options": {"pretrain_steps": 30}}
    assert (
        replace(setting, domain=pretrained).branch(biomedical) == "quality/general-b70/biomedical-a12-5-p30"
    )
    assert replace(setting, domain=None).branch(biomedical) == "quality/general-b70"
    assert (setting.key, replace(setting, domain=None).key) == ("b70 a12-5", "b70")
    assert replace(setting, root="mpnet").branch(captions) == "mpnet/general-b70"


def test_unlabelled_texts_are_the_rows_beyond_the_cap_and_those_of_the_sets_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "TRAIN", 3)
    words = [{"tokens": ["w", str(i)], "tags": ["O", "B-x"]} for i in range(5)]
    for name, rows in (
        ("scierc_ner", words),
        ("sci_cite", [{"text": "An end-to-end test, here.", "label": "a"}]),
    ):
        (tmp_path / name).mkdir()
        with gzip.open(tmp_path / name / "train.jsonl.gz", "wt") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    (task,) = named(["scierc_ner"])
    texts = [row.text for row in unlabelled(task, tmp_path, 10)]
    assert len(texts) == 3
    assert [row.text for row in unlabelled(task, tmp_path, 2)] == texts[:2]
    assert all(text in [row["tokens"] for row in words] for text in texts[:2])
    assert texts[2] == ["An", "end-to-end", "test", ",", "here", "."]
