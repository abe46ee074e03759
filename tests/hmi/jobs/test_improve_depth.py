"""The background job's deeper trial: a module in each layer, where a root of the source has all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hmi.errors import InvalidData
from hmi.jobs import improve
from hmi.jobs.improving import deepening, teaching
from hmi.jobs.root import import_root
from hmi.manager import Manager
from hmi.training.second import choosing
from tests.hmi.labs.build_lab import attempt, tiny_manager
from tests.hmi.labs.improve_lab import answers_kept, ended, lend, made, model, queued, taught

__all__ = ["taught"]  # a fixture


@pytest.fixture(scope="module")
def manager(tiny_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    for opened in tiny_manager(tiny_source, tmp_path_factory.mktemp("depth") / "data"):
        opened.create_tenant("acme")
        ended(opened, opened.import_root("deep", str(tiny_source), split=0), import_root.run)
        yield opened


@pytest.fixture
def anything_is_better(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "SURE", 0)
    monkeypatch.setattr(choosing.VersionComparison, "gain", 0.0)


def improve_as_taught(manager: Manager, name: str, taught: Path) -> None:
    """Run the model's job `improve`, which finds a teacher's answers."""
    job = queued(manager, name)
    lend(manager, job, taught)
    ended(manager, job)


def names(manager: Manager, name: str) -> list[str]:
    """What the model's job tried, in short."""
    improvement = model(manager, name).improvement
    assert improvement is not None
    return [tried.name.split(" ")[0] for tried in improvement.tried]


@pytest.mark.usefixtures("anything_is_better")
def test_all_layers_answer_where_held_out_rows_say_so(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is stopped as the deeper training begins, and resumed. The teacher is not tuned again."""
    made(manager, "acme.auto", ramps=True)
    job = queued(manager, "acme.auto")

    def deep_begins() -> bool:
        return (manager.settings.data / "jobs" / job.job / "deeper").exists()

    assert attempt(manager, job, improve.run, until=deep_begins) is None
    assert answers_kept(manager, job) is not None
    assert manager.registry.while_unused("deep", lambda models, jobs: jobs) == [job.job], (
        "it cannot be deleted"
    )
    monkeypatch.setattr(teaching, "_answered", None)
    ended(manager, job)
    record = model(manager, "acme.auto")
    base, live = record.versions
    assert (live.domain, live.root, base.root) == ("tiny", "deep", "tiny")
    assert live.plot_version == manager.plots.refs()["deep"].id
    assert (base.ramps, live.ramps) == ((0, 1), (0, 1, 2, 3))
    assert live.module is not None
    assert live.module.kind == "lora"
    assert names(manager, "acme.auto") == ["teachers", "a"]
    assert len(live.metrics["improved"]["tried"]) == 2
    assert live.metrics["teacher"]["teachers"][0]["name"]


def test_all_layers_must_be_better_than_the_second_version(
    manager: Manager, taught: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first comparison passes, the second does not, so half the layers answer."""
    made(manager, "acme.half")
    passes = iter([True, False])
    monkeypatch.setattr(choosing.VersionComparison, "passes", lambda *_: next(passes))
    improve_as_taught(manager, "acme.half", taught)
    record = model(manager, "acme.half")
    assert [v.root for v in record.versions] == ["tiny", "tiny"]
    assert names(manager, "acme.half") == ["teachers", "a"]
    assert record.improvement is not None
    assert "; all layers: " in (record.improvement.why or "")


@pytest.mark.usefixtures("anything_is_better")
def test_the_tenant_decides_for_fast_or_full(manager: Manager, taught: Path) -> None:
    made(manager, "acme.fast", depth="fast")
    improve_as_taught(manager, "acme.fast", taught)
    assert [v.root for v in model(manager, "acme.fast").versions] == ["tiny", "tiny"]
    assert names(manager, "acme.fast") == ["teachers"]
    made(manager, "acme.full")
    manager.set_objective("acme.full", dict, {"depth": "full"})
    improve_as_taught(manager, "acme.full", taught)
    assert [v.root for v in model(manager, "acme.full").versions] == ["tiny", "deep"]
    assert names(manager, "acme.full") == ["a"]
    made(manager, "acme.deep", depth="full")
    improve_as_taught(manager, "acme.deep", taught)
    assert [v.root for v in model(manager, "acme.deep").versions] == ["deep", "deep"]
    assert names(manager, "acme.deep") == ["teachers"], "it computes all layers already"


@pytest.mark.usefixtures("anything_is_better")
def test_a_deeper_trial_that_fails_leaves_the_second_version(
    manager: Manager, taught: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(manager, "acme.diverged")

    def diverges(*_: object, **__: object) -> None:
        raise InvalidData("the training diverged")

    monkeypatch.setattr(deepening, "train_on_rows", diverges)
    improve_as_taught(manager, "acme.diverged", taught)
    record = model(manager, "acme.diverged")
    assert [v.root for v in record.versions] == ["tiny", "tiny"]
    assert record.improvement is not None
    assert (record.improvement.why or "").endswith("all layers: the training diverged")
