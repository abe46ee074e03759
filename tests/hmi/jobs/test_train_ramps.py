"""Ramps are trained on the model's own answers, published with a version, and never outlive its weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hmi.core import ModelId, ModelVersion
from hmi.errors import InvalidData, InvalidInput
from hmi.jobs.model import fine_tune
from hmi.jobs.options import Reading
from hmi.manager import Manager
from hmi.model.tenant.artefact import Artefact
from tests.hmi.labs.api_world import hmi, rows
from tests.hmi.labs.build_lab import attempt, tiny_manager
from tests.tiny import random_texts

OPTIONS = {"epochs": 4, "module": {"rank": 2}, "max_length": 32, "lr": 3e-3}


@pytest.fixture(scope="module")
def manager(tiny_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    for opened in tiny_manager(tiny_source, tmp_path_factory.mktemp("ramps") / "data"):
        opened.create_tenant("acme")
        yield opened


def created(manager: Manager, name: str, **options: Any) -> ModelVersion:
    job = manager.create_model(
        name, domain="tiny", task="classification", data=rows(200), options={**OPTIONS, **options}
    )
    assert attempt(manager, job, fine_tune.run)
    return manager.model(name).live


def unlabelled(count: int = 60) -> bytes:
    return "\n".join(json.dumps({"text": text}) for text in random_texts(count, seed=11)).encode()


def artefact(manager: Manager, version: ModelVersion) -> dict[str, torch.Tensor]:
    from hmi.stores.tensors.adapter_store import AdapterStore

    return dict(AdapterStore(manager.settings.data / "adapters").get(version.artefact))


def test_a_training_makes_ramps_and_says_how_good_they_are(manager: Manager) -> None:
    live = created(manager, "acme.both")
    assert live.ramps == (0, 1)
    told = live.metrics["ramps"]
    assert [site["site"] for site in told["sites"]] == [0, 1]
    assert told["texts"] == live.metrics["rows"]
    ramps = Artefact.split(artefact(manager, live)).ramps
    assert {value.dtype for name, value in ramps.items() if name.endswith("weight")} == {torch.float16}
    assert {f"{site}.out.weight" for site in live.ramps} < set(ramps)
    assert told["sites"][0]["bytes"] == sum(v.nbytes for k, v in ramps.items() if k.startswith("0."))
    # the planted words are read by any ramp
    assert min(site["agreement"] for site in told["sites"]) > 0.9
    assert created(manager, "acme.none", ramps=False).ramps == ()


def test_a_job_gives_a_model_ramps_and_changes_nothing_else(manager: Manager) -> None:
    before = created(manager, "acme.late", ramps=False)
    said = rows(40).replace(b'"text"', b'"said"')
    named = Reading(text_column="said")  # the texts without answers have their usual name
    job = manager.train_ramps("acme.late", unlabelled=unlabelled(), data=said, reading=named)
    made = attempt(manager, job, fine_tune.run)
    assert made is not None
    assert made["published"]
    after = manager.model("acme.late").live
    assert after.version == made["version"] == before.version + 1
    assert after.ramps == (0, 1)
    same = {"task", "labels", "rules", "module", "max_length", "lexical", "temperature", "plot_version"}
    assert after.model_dump(include=same) == before.model_dump(include=same)
    old, new = artefact(manager, before), artefact(manager, after)
    assert all(
        torch.equal(new[name], value) and new[name].dtype == value.dtype for name, value in old.items()
    )
    assert {name for name in new if name not in old} == {
        f"ramps.{site}.out.{part}" for site in (0, 1) for part in ("weight", "bias")
    }
    assert after.metrics["ramps"]["unseen"], "the texts of the job are new to the model"
    assert {k: v for k, v in after.metrics.items() if k != "ramps"} == dict(before.metrics)
    # A second job replaces them.
    assert attempt(manager, manager.train_ramps("acme.late", unlabelled=unlabelled(80)), fine_tune.run)
    assert not torch.equal(
        artefact(manager, manager.model("acme.late").live)["ramps.0.out.weight"], new["ramps.0.out.weight"]
    )


def test_the_command_trains_ramps_and_the_report_shows_them(
    manager: Manager, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    created(manager, "acme.told", ramps=False)
    (tmp_path / "texts").write_bytes(unlabelled(30))
    at = ("--data", manager.settings.data)
    shown = hmi(capsys, "model", "ramps", "acme.told", "--unlabelled", tmp_path / "texts", *at)
    assert "answer as the model" in shown
    report = hmi(capsys, "model", "report", "acme.told", *at)
    assert "RAMP BEFORE LAYER" in report
    assert "error with it" in report
    assert "0, 1" in hmi(capsys, "model", "show", "acme.told", *at)


def test_an_update_renews_ramps_or_drops_them(manager: Manager) -> None:
    before = created(manager, "acme.next")
    for options, sites in (({"epochs": 1}, (0, 1)), ({"epochs": 1, "ramps": False}, ())):
        job = manager.update_model("acme.next", data=rows(200), options=options, publish="always")
        assert attempt(manager, job, fine_tune.run)
        after = manager.model("acme.next").live
        assert after.ramps == sites
        new, old = artefact(manager, after), artefact(manager, before)
        assert not any(torch.equal(new[name], old[name]) for name in new if name.startswith("ramps."))
        assert any(name.startswith("ramps.") for name in new) == bool(sites)


def test_a_version_that_no_longer_answers_gets_its_ramps_held_back(manager: Manager) -> None:
    first = created(manager, "acme.moved", ramps=False)
    job = manager.train_ramps("acme.moved", unlabelled=unlabelled())
    manager.registry.publish_model(
        ModelId("acme", "moved"), first.model_copy(update={"version": 0, "job": "another"})
    )
    made = attempt(manager, job, fine_tune.run)
    assert made is not None
    assert not made["published"]
    assert "version 2 answers" in made["reason"]


def test_errors_name_the_field_and_the_cure(manager: Manager) -> None:
    with pytest.raises(InvalidInput, match="there are no texts: give unlabelled") as no_texts:
        manager.train_ramps("acme.both")
    assert no_texts.value.details["field"] == "unlabelled"
    with pytest.raises(InvalidData, match="unlabelled"):
        manager.train_ramps("acme.both", unlabelled=b'{"tokens": ["a"]}\n')
    few = manager.train_ramps("acme.both", unlabelled=unlabelled(5))
    with pytest.raises(InvalidData, match="5 different texts: give at least 20"):
        attempt(manager, few, fine_tune.run)
    manager.cancel_job(few.job)
    made = manager.create_model("acme.vectors", domain="tiny", task="embedding")
    assert attempt(manager, made, fine_tune.run)
    with pytest.raises(InvalidInput, match="an embedding model has no ramps") as embedding:
        manager.train_ramps("acme.vectors", unlabelled=unlabelled())
    assert embedding.value.details["field"] == "model"
