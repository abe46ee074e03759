"""The background job that tries what makes a published version better."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hmi.api.views.second_version import improving_view
from hmi.core import Cascade, JobRecord, ModelId
from hmi.errors import JobCancelled
from hmi.jobs import improve
from hmi.jobs.improving import deciding, ledger, teaching, trying
from hmi.jobs.model import fine_tune
from hmi.jobs.runtime.context import JobContext
from hmi.manager import Manager
from hmi.training.second import choosing, second_version, teachers
from hmi.training.second.choosing import SURE
from tests.hmi.labs.api_world import rows
from tests.hmi.labs.build_lab import attempt, tiny_manager
from tests.hmi.labs.improve_lab import (
    DEV,
    ROWS,
    answers_kept,
    ended,
    folder,
    lend,
    made,
    model,
    queued,
    taught,
)
from tests.tiny import random_texts, write_tiny_mpnet

__all__ = ["taught"]  # a fixture


@pytest.fixture(scope="module")
def manager(tiny_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    for opened in tiny_manager(tiny_source, tmp_path_factory.mktemp("improve") / "data"):
        opened.create_tenant("acme")
        yield opened


def follow_up(manager: Manager, name: str, taught: Path, **options: Any) -> JobRecord:
    """Create a model, and return its job `improve`, which was stopped after its teacher had answered."""
    made(manager, name, **options)
    job = queued(manager, name)
    lend(manager, job, taught)
    return job


def with_a_larger_source(manager: Manager, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the operator have allowed a larger source, which is on the machine."""
    larger = write_tiny_mpnet(folder / "larger")
    monkeypatch.setattr(type(manager.settings), "teacher_names", property(lambda _: (str(larger),)))


def test_few_held_out_rows_choose_no_epoch(manager: Manager) -> None:
    labels = random.Random(3).choices("ab", k=300)  # nothing can be learnt from them, so the scores wander
    lines = [
        json.dumps({"text": f"{text} {i}", "label": label})
        for i, (text, label) in enumerate(zip(random_texts(300, seed=9, high=4), labels, strict=True))
    ]
    made(manager, "acme.chance", "\n".join(lines).encode(), epochs=8, lr=5e-3)
    metrics = model(manager, "acme.chance").versions[-1].metrics
    assert metrics["rows"] == 30
    assert metrics["epoch"] == metrics["epochs_run"] == 8


def says(manager: Manager, name: str) -> tuple[str, str]:
    """Return the state and the sentence that `GET model` gives of the model's background job."""
    view = improving_view(model(manager, name), manager.registry)
    assert view is not None
    return view.state, view.says


def test_a_better_version_is_published_and_everything_is_told(manager: Manager, taught: Path) -> None:
    job = queued(manager, "acme.better")
    assert (job.kind, job.state) == ("improve", "queued")
    assert folder(manager, job).pinned().plot == model(manager, "acme.better").live.plot_version
    assert says(manager, "acme.better") == ("queued", f"job {job.job} waits to improve version 1")
    result = attempt(manager, job, improve.run)
    assert result is not None
    kept = answers_kept(manager, job)
    assert kept is not None
    assert kept.read_bytes() == taught.read_bytes(), "the teacher was not trained again"
    record = model(manager, "acme.better")
    assert (record.current, result["version"], result["improves"]) == (2, 2, 1)
    found = record.improvement
    assert found is not None
    [tried] = found.tried
    assert tried.before is not None
    assert tried.after is not None
    assert tried.sure is not None
    assert (tried.rows, found.published, tried.sure >= SURE) == (200, 2, True)
    assert found.gain == pytest.approx(tried.after - tried.before, abs=1e-5)
    assert found.cpu_s >= tried.cpu_s > 0
    assert record.live.metrics["improved"] == {"version": 1, "tried": [tried.model_dump(mode="json")]}
    state, said = says(manager, "acme.better")
    assert state == "finished"
    assert "version 2 was published: better on 200 held-out rows" in said
    # A process that was killed after its publication finds it, and publishes no other.
    again = attempt(manager, job, improve.run)
    assert again is not None
    assert (again["version"], again["gain"]) == (2, result["gain"])
    assert len(model(manager, "acme.better").versions) == 2
    manager.runner.settle(job.job)
    assert not folder(manager, job).input.exists(), "the rows are deleted when the job ends"


@pytest.mark.parametrize(("wished", "planned"), [(None, 2), (3, 3)])
def test_a_second_version_has_epochs_of_its_own(
    manager: Manager, taught: Path, monkeypatch: pytest.MonkeyPatch, wished: int | None, planned: int
) -> None:
    """The number of texts does not choose them. A first version has 12 for so few rows."""
    monkeypatch.setattr(trying, "EPOCHS", 2)
    monkeypatch.setattr(choosing, "SURE", 0)
    monkeypatch.setattr(choosing.VersionComparison, "gain", 0.0)
    name = f"acme.epochs{planned}"
    ended(manager, follow_up(manager, name, taught, epochs=wished))
    record = model(manager, name)
    assert record.current == 2
    assert (record.versions[0].metrics["epochs"], record.live.metrics["epochs"]) == (wished or 12, planned)


def test_what_is_not_better_with_confidence_is_not_published(
    manager: Manager, taught: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "SURE", 1.01)
    result = ended(manager, follow_up(manager, "acme.good", taught, epochs=4))
    record = model(manager, "acme.good")
    assert (result["version"], [v.version for v in record.versions]) == (None, [1])
    assert record.improvement is not None
    assert record.improvement.tried[0].sure is not None
    assert record.improvement.tried[0].sure is not None
    assert "version 1 was not improved: not better with confidence" in says(manager, "acme.good")[1]


def in_sets(count: int) -> bytes:
    """Labelled rows whose task has several labels a row."""
    each = [json.loads(line) for line in rows(count).splitlines()]
    return "\n".join(json.dumps({"text": of["text"], "labels": [of["label"]]}) for of in each).encode()


def test_with_few_rows_all_of_them_decide(manager: Manager) -> None:
    made(manager, "acme.few", in_sets(60), task="multilabel")
    result = ended(manager, queued(manager, "acme.few"))
    [tried] = result["tried"]
    assert tried["rows"] == 60
    assert tried["sure"] is not None
    better = tried["sure"] >= SURE and tried["after"] >= tried["before"]
    assert (result["version"] is not None) == better


@pytest.mark.parametrize("worst", [-1.0, 1.0])
def test_with_few_rows_of_one_label_the_second_version_is_trusted_unless_it_is_worse(
    manager: Manager, monkeypatch: pytest.MonkeyPatch, worst: float
) -> None:
    monkeypatch.setattr(choosing, "WORSE", worst)
    name = f"acme.trusted{worst:+.0f}".replace("+", "-no").replace("--", "-")
    made(manager, name, rows(100))
    result = ended(manager, queued(manager, name))
    [tried] = result["tried"]
    assert tried["rows"] == 10
    if worst < 0:
        assert result["version"] == 2
        assert result["reason"].startswith("not worse on 10 held-out rows: ")
    else:
        assert result["version"] is None
        assert result["reason"].startswith("worse on 10 held-out rows: ")


def test_a_training_that_was_cut_short_is_not_trusted(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "SURE", 1.01)
    made(manager, "acme.cut", rows(100), epochs=3)
    job = queued(manager, "acme.cut")
    kept = folder(manager, job).path / "checkpoint.safetensors"
    assert attempt(manager, job, improve.run, until=kept.exists) is None, "it is stopped in its second epoch"
    spend(manager, job)
    result = ended(manager, job)
    assert result["version"] is None
    assert "not better with confidence" in result["reason"]
    assert "the budget ended its training early" in result["reason"]


def test_a_training_that_was_cut_short_needs_held_out_rows(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "SURE", 0.0)
    monkeypatch.setattr(choosing.VersionComparison, "gain", 0.0)
    made(manager, "acme.cutfew", rows(100), epochs=3)
    job = queued(manager, "acme.cutfew")
    kept = folder(manager, job).path / "checkpoint.safetensors"
    assert attempt(manager, job, improve.run, until=kept.exists) is None
    spend(manager, job)
    result = ended(manager, job)
    assert result["version"] is None
    assert result["reason"].endswith("early, and so few rows do not judge that")


def test_nobody_judges_a_training_after_the_folds_that_was_cut_short(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def enough(self: ledger.Ledger) -> bool:
        self.cut = self.cut or (self._path.parent / "checkpoint.safetensors").exists()
        return self.cut

    monkeypatch.setattr(choosing.VersionComparison, "better", True)
    monkeypatch.setattr(ledger.Ledger, "enough", enough)
    made(manager, "acme.cutfolds", in_sets(24), task="multilabel", epochs=2)
    result = ended(manager, queued(manager, "acme.cutfolds"))
    assert result["version"] is None
    assert result["reason"].endswith(
        "the budget was spent before it was trained on all rows, so nothing was published"
    )


def test_what_too_few_rows_are_depends_on_the_rule() -> None:
    def says(train: int, dev: int, unseen: int, rule: choosing.Rule) -> bool:
        data: Any = SimpleNamespace(train=[None] * train, dev=[None] * dev)
        return deciding.too_few(list(range(unseen)), data, rule) is not None

    assert not says(60, 60, 0, "by_folds"), "the training rows suffice"
    assert says(19, 60, 0, "by_folds")
    assert not says(19, 60, 1, "by_folds")
    assert says(200, 20, 0, "not_worse")
    assert not says(90, 10, 10, "not_worse")
    assert says(2_000, 100, 19, "better")
    assert not says(2_000, 100, 20, "better")


@pytest.mark.parametrize("share", [0.0, 0.6])
def test_a_larger_teacher_is_heard_in_all_folds_or_in_none(
    manager: Manager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    with_a_larger_source(manager, tmp_path, monkeypatch)
    monkeypatch.setattr(ledger, "TEACHERS_SHARE", share)
    name = "acme.larger" if share else "acme.smaller"
    made(manager, name, in_sets(24), task="multilabel")
    job = queued(manager, name)
    kept, heard = folder(manager, job).path, list[str]()

    def run(ctx: JobContext) -> dict[str, Any]:
        result = improve.run(ctx)
        assert json.loads((kept / "improve.json").read_text())["left_out"] == ([] if share else ["larger"])
        heard.extend(str(path.parent) for path in kept.rglob("said-1-*"))
        return result

    result = ended(manager, job, run)
    assert result["tried"][0]["rows"] == 24
    assert len(heard) == (0 if share == 0 else 4 + (result["version"] is not None))


def test_a_larger_source_that_is_broken_teaches_nothing(
    manager: Manager, taught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_a_larger_source(manager, tmp_path, monkeypatch)
    (tmp_path / "larger" / "tokenizer.json").write_text("{}")
    result = ended(manager, follow_up(manager, "acme.alone", taught))
    [tried] = result["tried"]
    assert tried["rows"] == 200
    assert "larger" not in tried["name"]


def tagged(count: int) -> bytes:
    """Labelled rows whose task is tagging."""
    words = [json.loads(line)["text"].split() for line in rows(count).splitlines()]
    return "\n".join(
        json.dumps({"tokens": of, "tags": ["B-x" if word == "market" else "O" for word in of]})
        for of in words
    ).encode()


def test_few_tagged_texts_have_no_larger_teacher(
    manager: Manager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_a_larger_source(manager, tmp_path, monkeypatch)
    monkeypatch.setattr(teachers, "TAGGED_ROWS", 24)
    made(manager, "acme.tagged", tagged(24), task="tagging")
    job = queued(manager, "acme.tagged")
    heard = list[str]()

    def run(ctx: JobContext) -> dict[str, Any]:
        result = improve.run(ctx)
        heard.extend(path.name[:6] for path in ctx.folder.rglob("said-*"))
        return result

    assert ended(manager, job, run)["tried"][0]["rows"] == 24
    assert set(heard) == {"said-0"}


def test_a_larger_teacher_leaves_time_for_the_model(
    manager: Manager, taught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_a_larger_source(manager, tmp_path, monkeypatch)
    monkeypatch.setattr(ledger, "TEACHERS_SHARE", 0.0)
    result = ended(manager, follow_up(manager, "acme.slow", taught))
    assert "larger" not in result["tried"][0]["name"]
    assert result["tried"][0]["sure"] is not None


def test_a_larger_teacher_that_would_not_fit_is_not_begun(
    manager: Manager, taught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_a_larger_source(manager, tmp_path, monkeypatch)
    monkeypatch.setattr(teachers, "TUNED", 1)
    monkeypatch.setattr(second_version, "FEW", 0)  # it would be tuned, not contrasted
    monkeypatch.setattr(teaching, "expected_s", lambda *_: 4_000.0)
    job = follow_up(manager, "acme.unfit", taught)
    result = ended(manager, job)
    assert "larger" not in result["tried"][0]["name"]
    assert "larger needs up to 4000 CPU seconds" in folder(manager, job).log.read_text()


def test_too_few_rows_decide_nothing(manager: Manager) -> None:
    for count, data, task, least in (
        (99, rows(99), "classification", 100),
        (12, in_sets(12), "multilabel", 20),
    ):
        made(manager, f"acme.fewest{count}", data, task=task)
        result = ended(manager, queued(manager, f"acme.fewest{count}"))
        assert (result["version"], result["tried"]) == (None, [])
        assert result["reason"] == f"{count} rows are too few to tell a better version: it takes {least}"


def spend(manager: Manager, job: JobRecord) -> None:
    """Let the job have spent its budget."""
    (folder(manager, job).path / "improve.json").write_text(json.dumps({"cpu_s": 4000.0}))


def test_a_spent_budget_ends_the_job(manager: Manager) -> None:
    made(manager, "acme.spent")
    job = queued(manager, "acme.spent")
    spend(manager, job)
    result = ended(manager, job)
    assert (result["version"], result["cpu_s"] >= 4000) == (None, True)
    assert "its budget of 3600 CPU seconds was spent" in result["reason"]


def test_the_best_epoch_within_the_budget_is_judged(manager: Manager, taught: Path) -> None:
    job = follow_up(manager, "acme.short", taught, epochs=3)
    kept = folder(manager, job).path / "checkpoint.safetensors"
    assert attempt(manager, job, improve.run, until=kept.exists) is None, "it is stopped in its second epoch"
    spend(manager, job)
    result = ended(manager, job)
    assert "the budget ended its training early" in result["reason"]
    assert result["tried"][0]["after"] is not None


def test_another_version_that_answers_supersedes_the_job(manager: Manager) -> None:
    made(manager, "acme.new")
    old = queued(manager, "acme.new")
    update = manager.update_model("acme.new", data=ROWS, dev=DEV, options={"epochs": 1})
    assert ended(manager, update, fine_tune.run)["published"]
    stopped, following = manager.registry.job(old.job), queued(manager, "acme.new")
    assert stopped.state == "cancelled"
    assert stopped.result == {"reason": "superseded: version 2 answers since"}
    assert not folder(manager, old).input.exists()
    assert (following.state, following.spec["version"]) == ("queued", 2)
    # A job that runs meanwhile cannot publish.
    manager.registry.update_job(following.job, lambda r: r.model_copy(update={"state": "running"}))
    manager.registry.set_current(ModelId("acme", "new"), 1)
    with pytest.raises(JobCancelled):
        attempt(manager, manager.registry.job(following.job), improve.run)
    assert len(model(manager, "acme.new").versions) == 2
    assert says(manager, "acme.new")[0] == "running"
    manager.runner.settle(following.job)
    assert "superseded: version 1 answers since" in says(manager, "acme.new")[1]


def test_an_update_goes_on_from_the_version_that_it_improves(manager: Manager, taught: Path) -> None:
    made(manager, "acme.updated", improve=False)
    assert model(manager, "acme.updated").improvement is None
    update = manager.update_model("acme.updated", data=ROWS, dev=DEV, options={"epochs": 1})
    assert ended(manager, update, fine_tune.run)["improving"] is not None
    job = queued(manager, "acme.updated")
    lend(manager, job, taught)
    result = ended(manager, job)
    assert (result["improves"], len(result["tried"])) == (2, 1)
    assert result["tried"][0]["after"] >= 0.7, "it knows what the version knew"


def test_a_cascade_keeps_its_versions_until_its_tenant_says_so(manager: Manager, taught: Path) -> None:
    job = follow_up(manager, "acme.cascade", taught)
    levels = Cascade(version=1, rows=300, large_accuracy=0.9, large_ms=1.0, offers=())
    manager.registry.change_model(
        ModelId("acme", "cascade"), lambda r: r.model_copy(update={"cascade": levels})
    )
    result = ended(manager, job)
    record = model(manager, "acme.cascade")
    assert (record.current, result["version"]) == (1, 2)
    assert "the cascade of acme.cascade was profiled with version 1" in str(record.versions[1].held_back)
