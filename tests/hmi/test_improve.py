"""The background job that tries what makes a published version better."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hmi.api.improving import improving_view
from hmi.core import Cascade, JobRecord, ModelId
from hmi.errors import JobCancelled
from hmi.jobs import fine_tune, improve
from hmi.jobs.improving import ledger
from hmi.jobs.runtime.context import JobContext
from hmi.manager import Manager
from hmi.training import choosing
from hmi.training.choosing import SURE
from tests.hmi.api_world import rows
from tests.hmi.build_lab import attempt, tiny_manager
from tests.hmi.improve_lab import DEV, ROWS, answers_kept, ended, folder, lend, made, model, queued
from tests.tiny import write_tiny_mpnet


@pytest.fixture(scope="module")
def manager(tiny_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    for opened in tiny_manager(tiny_source, tmp_path_factory.mktemp("improve") / "data"):
        opened.create_tenant("acme")
        yield opened


@pytest.fixture(scope="module")
def taught(manager: Manager, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A teacher's answers for ROWS, made by a job that is then stopped at the next step, and resumed."""
    made(manager, "acme.better")
    job = queued(manager, "acme.better")
    assert attempt(manager, job, improve.run, until=lambda: answers_kept(manager, job) is not None) is None
    answers = answers_kept(manager, job)
    assert answers is not None
    return Path(shutil.copy(answers, tmp_path_factory.mktemp("taught") / answers.name))


def follow_up(manager: Manager, name: str, taught: Path, **options: Any) -> JobRecord:
    """Create a model, and return its job `improve`, which was stopped after its teacher had answered."""
    made(manager, name, **options)
    job = queued(manager, name)
    lend(manager, job, taught)
    return job


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


def test_with_few_rows_all_of_them_decide(manager: Manager) -> None:
    made(manager, "acme.few", rows(60))
    result = ended(manager, queued(manager, "acme.few"))
    [tried] = result["tried"]
    assert tried["rows"] == 60
    assert tried["sure"] is not None
    better = tried["sure"] >= SURE and tried["after"] >= tried["before"]
    assert (result["version"] is not None) == better


@pytest.mark.parametrize("share", [0.0, 0.6])
def test_a_larger_teacher_is_heard_in_all_folds_or_in_none(
    manager: Manager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    larger = write_tiny_mpnet(tmp_path / "larger")
    monkeypatch.setattr(type(manager.settings), "teacher_names", property(lambda _: (str(larger),)))
    monkeypatch.setattr(ledger, "TEACHERS_SHARE", share)
    name = "acme.larger" if share else "acme.smaller"
    made(manager, name, rows(24))
    job = queued(manager, name)
    kept, heard = folder(manager, job).path, list[str]()

    def run(ctx: JobContext) -> dict[str, Any]:
        result = improve.run(ctx)
        assert json.loads((kept / "improve.json").read_text())["teachers"] == (None if share else 1)
        heard.extend(str(path.parent) for path in kept.rglob("said-1-*"))
        return result

    result = ended(manager, job, run)
    assert result["tried"][0]["rows"] == 24
    assert len(heard) == (0 if share == 0 else 4 + (result["version"] is not None))


def test_a_larger_teacher_leaves_time_for_the_model(
    manager: Manager, taught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    larger = write_tiny_mpnet(tmp_path / "larger")
    monkeypatch.setattr(type(manager.settings), "teacher_names", property(lambda _: (str(larger),)))
    monkeypatch.setattr(ledger, "TEACHERS_SHARE", 0.0)
    result = ended(manager, follow_up(manager, "acme.slow", taught))
    assert "larger" not in result["tried"][0]["name"]
    assert result["tried"][0]["sure"] is not None


def test_too_few_rows_decide_nothing(manager: Manager) -> None:
    made(manager, "acme.fewest", rows(12))
    result = ended(manager, queued(manager, "acme.fewest"))
    assert (result["version"], result["tried"]) == (None, [])
    assert result["reason"] == "12 rows are too few to tell a better version"


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
