"""An update that scores worse than the live version on the same held-out rows is kept and does not answer."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import torch

from hmi.cli import main
from hmi.cli.framework.endings import lines
from hmi.cli.framework.progress import show_end
from hmi.core import ModelId
from hmi.errors import Damaged, InvalidInput
from hmi.jobs.model import fine_tune
from hmi.jobs.model.comparing import tolerance
from hmi.manager import Manager
from hmi.model.tasks.multilabel import MultiLabel
from hmi.model.tasks.regression import Regression
from hmi.model.tasks.sequence import Classification
from hmi.model.tasks.words import Tagging
from hmi.stores.records.model_table import KEPT_VERSIONS
from hmi.training.data.golds import Gold
from hmi.training.data.rows import Row
from hmi.training.tasks.objectives import objective_of
from hmi.training.tasks.row_keys import (
    MAX_KEYS,
    are_seen,
    hold_out,
    joined_keys,
    keys_as_text,
    keys_from_text,
)
from tests.hmi.labs.api_world import LABELS, hmi, rows
from tests.hmi.labs.build_lab import attempt, tiny_manager
from tests.hmi.labs.runner_bodies import version_by

OPTIONS = {"epochs": 6, "module": {"rank": 2}, "max_length": 32, "lr": 3e-3}


@pytest.fixture(scope="module")
def manager(tiny_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    for opened in tiny_manager(tiny_source, tmp_path_factory.mktemp("held-back") / "data"):
        opened.create_tenant("acme")
        job = opened.create_model(
            "acme.m", domain="tiny", task="classification", data=rows(200), options=OPTIONS
        )
        made = attempt(opened, job, fine_tune.run)
        assert made is not None
        assert (made["published"], made["reason"]) == (True, None)
        assert made["metrics"]["accuracy"] > 0.9
        yield opened


def noise() -> bytes:
    """Rows whose labels are chance."""
    rng = random.Random(1)
    told = [json.loads(line) for line in rows(200).splitlines()]
    return "\n".join(json.dumps({**row, "label": rng.choice(LABELS)}) for row in told).encode()


def update(manager: Manager, data: bytes, **given: Any) -> dict[str, Any]:
    made = attempt(manager, manager.update_model("acme.m", data=data, **given), fine_tune.run)
    assert made is not None
    return made


def test_a_worse_update_is_held_back_and_can_be_published(
    manager: Manager, capsys: pytest.CaptureFixture[str]
) -> None:
    before = manager.model("acme.m").current
    made = update(manager, noise(), dev=rows(60), options={"epochs": 4, "lr": 2e-2})
    assert made["published"] is False
    live = made["metrics"]["live"]
    assert live["version"] == before
    assert live["score"] < live["live_score"] - live["tolerance"]
    assert f"version {before}" in made["reason"]
    assert "worse by more than" in made["reason"]
    record = manager.model("acme.m")
    assert (record.current, record.versions[-1].version) == (before, made["version"])
    shown = hmi(capsys, "model", "show", "acme.m", "--data", manager.settings.data)
    assert "held back: it scores" in shown
    assert "answers" in shown
    hmi(capsys, "model", "publish", "acme.m", made["version"], "--data", manager.settings.data)
    assert manager.model("acme.m").current == made["version"]
    manager.rollback_model("acme.m", before)


def test_publish_always_or_never_overrides_the_comparison(manager: Manager) -> None:
    before = manager.model("acme.m").current
    made = update(manager, rows(200), publish="never", options={"epochs": 1})
    assert (made["published"], made["reason"]) == (False, "publish=never was asked for")
    assert manager.model("acme.m").current == before
    worse = {"dev": rows(60), "options": {"epochs": 4, "lr": 2e-2}}
    made = update(manager, noise(), publish="always", **worse)
    assert made["published"] is True
    assert made["metrics"]["live"]["score"] < made["metrics"]["live"]["live_score"]
    assert manager.model("acme.m").current == made["version"]
    manager.rollback_model("acme.m", before)
    with pytest.raises(InvalidInput, match="use one of if-better, always, never"):
        manager.update_model("acme.m", data=rows(200), publish="maybe")


def test_the_command_tells_both_scores_and_that_it_held_back(
    manager: Manager, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, data = manager.model("acme.m").current, ("--data", str(manager.settings.data))
    (tmp_path / "noise").write_bytes(noise())
    (tmp_path / "dev").write_bytes(rows(60))
    worse = ("--dev", str(tmp_path / "dev"), "--option", "epochs=4", "--option", "lr=2e-2")
    with pytest.raises(SystemExit) as ended:
        main(["model", "update", "acme.m", str(tmp_path / "noise"), *worse, *data])
    out, err = capsys.readouterr()
    assert ended.value.code == 3, err
    assert "is held back: it scores" in err
    view = json.loads(hmi(capsys, "job", "list", "--json", *data))[0]
    live = view["result"]["metrics"]["live"]
    assert (live["version"], live["metric"], live["near_chance"]) == (before, "accuracy", False)
    both = f"accuracy {live['score']:.4g} (new), {live['live_score']:.4g} (version {before}, live before it)"
    assert f"compared: {both}, on the same {live['rows']} held-out rows" in out
    assert both in hmi(capsys, "model", "report", "acme.m", "--version", view["result"]["version"], *data)
    assert "exit code 3" in hmi(capsys, "model", "update", "--help").casefold()


def test_holding_back_what_was_asked_to_be_is_no_failure(manager: Manager) -> None:
    job = manager.update_model("acme.m", data=noise(), publish="never", options={"epochs": 1})
    made = attempt(manager, job, fine_tune.run)
    assert made is not None
    view = {"job": "j", "state": "succeeded", "kind": "fine_tune", "target": "acme.m", "result": made}
    show_end(view, as_json=False)
    with pytest.raises(click.exceptions.Exit) as ended:
        show_end({**view, "result": {**made, "publish": "if-better"}}, as_json=True)
    assert ended.value.exit_code == 3


def test_scores_near_chance_are_called_so(manager: Manager) -> None:
    job = manager.create_model(
        "acme.chance", domain="tiny", task="classification", data=noise(), options=OPTIONS
    )
    assert attempt(manager, job, fine_tune.run)
    job = manager.update_model("acme.chance", data=noise(), options={"epochs": 1})
    made = attempt(manager, job, fine_tune.run)
    assert made is not None
    live = made["metrics"]["live"]
    assert (0.4 < live["chance"] < 0.7, live["near_chance"]) == (True, True), live
    told = "\n".join(lines({"job": "j", "kind": "fine_tune", "target": "acme.chance", "result": made}))
    assert f"both are near chance ({live['chance']:.4g}, by one answer for every row)" in told
    manager.delete_model("acme.chance")


def test_chance_is_the_best_answer_that_is_the_same_for_every_row() -> None:
    assert objective_of(Classification(("a", "b"))).chance(["a", "a", "b"]) == pytest.approx(2 / 3)
    assert objective_of(Regression()).chance([1.0, 2.0]) == 0
    assert objective_of(Tagging(("B-X", "O"))).chance([("O", "B-X", "O")]) == 0
    assert objective_of(Tagging(("DET", "NOUN"))).chance([("DET", "NOUN", "NOUN", "NOUN")]) == 0.75
    golds: list[Gold] = [("a",), ("a", "b"), ("c",), ()]
    sets = MultiLabel(("a", "b", "c"))
    constant = [torch.tensor(at).float() * 9 - 4 for at in ([1, 0, 0], [1, 1, 0], [1, 1, 1])]
    best = max(objective_of(sets).score(golds, [answer] * 4)["micro_f1"] for answer in constant)
    assert objective_of(sets).chance(golds) == pytest.approx(best, abs=1e-4)


def test_an_update_that_is_no_worse_answers(manager: Manager) -> None:
    made = update(manager, rows(240))
    assert made["published"] is True
    live = made["metrics"]["live"]
    assert live["rows"] >= 20
    assert live["seen_rows"] == 0, "what was held out before is held out again"
    assert live["live_score"] > 0.9, "the live version's own weights, rules and PLOT were read"
    assert manager.model("acme.m").current == made["version"]


def test_rows_that_the_live_version_was_trained_on_are_told(manager: Manager) -> None:
    made = update(manager, rows(200), dev=rows(200))
    live = made["metrics"]["live"]
    assert 20 <= live["rows"] <= 50, "only rows that it was not trained on are compared"
    few = b"\n".join(rows(200).splitlines()[:12])
    trained = {json.loads(line)["text"] for line in few.splitlines()}
    made = update(manager, rows(200), dev=few)
    live = made["metrics"]["live"]
    assert live["rows"] == len(trained) == 12
    assert live["seen_rows"] > 0


def test_an_update_of_another_form_is_held_back_and_a_lost_live_version_is_replaced(manager: Manager) -> None:
    singles = "".join(json.dumps({"text": f"cell {i}", "value": i}) + "\n" for i in range(30)).encode()
    pairs = singles.replace(b'", "value"', b'", "text_pair": "gene", "value"')
    few = {**OPTIONS, "epochs": 1}
    job = manager.create_model("acme.v", domain="tiny", task="regression", data=singles, options=few)
    assert attempt(manager, job, fine_tune.run)
    module = {"kind": "houlsby", "rank": 2}  # another kind: it does not start from the live version's module
    job = manager.update_model("acme.v", data=pairs, options={"epochs": 1, "module": module})
    made = attempt(manager, job, fine_tune.run)
    assert made is not None
    assert made["reason"] == "an input is text and text_pair now and a text in version 1"
    live = manager.model("acme.v").live
    (manager.settings.data / "adapters" / f"{live.artefact}.safetensors").unlink()
    job = manager.update_model("acme.v", data=singles, options={"epochs": 1, "module": module})
    made = attempt(manager, job, fine_tune.run)
    assert made is not None
    assert (made["published"], manager.model("acme.v").current) == (True, 3)


def changed(path: Path) -> None:
    """Change every 97th byte of the file's second half."""
    raw = bytearray(path.read_bytes())
    for at in range(len(raw) // 2, len(raw), 97):
        raw[at] ^= 0x15
    path.write_bytes(raw)


def test_an_update_of_a_damaged_live_version_begins_afresh_and_answers(manager: Manager) -> None:
    """Also after an interruption; and with fewer rows, which are then all that the
    new version has learnt from."""
    few = {**OPTIONS, "epochs": 2}
    job = manager.create_model("acme.d", domain="tiny", task="classification", data=rows(120), options=few)
    assert attempt(manager, job, fine_tune.run)
    first = manager.model("acme.d").live
    changed(manager.adapters.path(first.artefact))
    start = {**few, "module": None, "start": "acme.d"}
    job = manager.create_model("acme.e", domain="tiny", task="classification", data=rows(60), options=start)
    with pytest.raises(
        Damaged, match=r"version 1 of acme\.d, which options\.start names, fails its checksum"
    ) as caught:
        attempt(manager, job, fine_tune.run)
    assert first.artefact not in caught.value.message
    manager.cancel_job(job.job)
    job = manager.update_model("acme.d", data=rows(60), options={"epochs": 3})
    assert attempt(manager, job, fine_tune.run, calls=4) is None, "it was to be stopped after its first epoch"
    assert (manager.settings.data / "jobs" / job.job / "checkpoint.safetensors").exists()
    made = attempt(manager, job, fine_tune.run)
    assert made is not None
    assert made["published"] is True
    told = " ".join(made["metrics"]["warnings"])
    assert "the live version 1 is damaged: this update was trained afresh" in told
    assert "was not compared" in told
    assert "live" not in made["metrics"]
    live = manager.model("acme.d").live
    assert live.version == 2
    known = keys_from_text(manager.adapters.about(live.artefact)["rows"])
    assert 0 < len(known) <= 60
    made = attempt(
        manager, manager.update_model("acme.d", data=rows(60), options={"epochs": 1}), fine_tune.run
    )
    assert made is not None
    assert made["metrics"]["live"]["version"] == 2, (
        "an intact live version is gone on from, and compared with"
    )
    assert not any("afresh" in note for note in made["metrics"]["warnings"])


def numbered(start: int, stop: int) -> list[Row]:
    return [Row(f"text {i}", "ab"[i % 2]) for i in range(start, stop)]


def test_a_held_out_row_stays_held_out() -> None:
    first, more = numbered(0, 400), numbered(400, 800)
    train, dev = hold_out(first)
    again, later = hold_out([*more, *first])
    moved = {row.text for row in later} & {row.text for row in train}
    assert len(moved) <= 0.15 * len(later)
    assert len({row.text for row in dev} & {row.text for row in again}) <= 0.4 * len(dev)
    shuffled = random.Random(3).sample(first, len(first))
    assert {row.text for row in hold_out(shuffled)[1]} == {row.text for row in dev}


def test_keys_tell_which_rows_were_trained_on() -> None:
    keys = keys_from_text(keys_as_text(joined_keys(numbered(0, 50))))
    assert are_seen(numbered(40, 60), keys) == [True] * 10 + [False] * 10
    both = joined_keys(numbered(50, 60), keys)
    assert all(are_seen(numbered(0, 60), both))
    assert len(joined_keys([], np.arange(MAX_KEYS + 9, dtype=np.uint32))) == MAX_KEYS


@pytest.mark.parametrize(
    ("live", "new", "count", "published"),
    [
        (1.0, 0.95, 20, True),
        (1.0, 0.90, 20, False),
        (0.967, 0.70, 30, False),
        (0.9, 0.89, 1000, False),
        (0.9, 0.893, 1000, True),
    ],
)
def test_not_worse_is_within_a_standard_error_and_a_row(
    live: float, new: float, count: int, published: bool
) -> None:
    assert (new >= live - tolerance(live, count, signed=False) - 1e-9) is published


def test_the_version_that_answers_is_kept_however_many_were_held_back(manager: Manager) -> None:
    model, plot = ModelId.parse("acme.kept"), manager.plots.version("tiny")
    for n in range(12):
        version = version_by(f"k{n}", artefact="0" * 64, domain="tiny", plot_version=plot.id, bytes=1)
        back = None if n == 0 else "worse"
        record = manager.registry.publish_model(model, version.model_copy(update={"held_back": back}))
    assert record.current == 1
    assert [v.version for v in record.versions] == [1, *range(13 - KEPT_VERSIONS + 1, 13)]
    manager.registry.delete_model(model)
