"""A model's token adaptation from the job that profiles it to the texts that it changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from hmi.core import ModelId, ModelRecord, ModelVersion, Objective, TokenPoint
from hmi.engine import TextRequest, TextResult
from hmi.errors import Damaged, InvalidData, InvalidInput
from hmi.jobs.model import fine_tune
from hmi.jobs.options import AS_IT_IS, Reading
from hmi.model.sources.root import load_root
from hmi.model.tasks import task_of_version
from hmi.model.tenant.artefact import Artefact
from hmi.stages.base import Setting
from hmi.stages.planner import Candidate, Plan, RoundRobin
from hmi.stages.token_adaptation.settings import prompting
from hmi.stages.token_adaptation.stage import TokenAdaptation
from hmi.stores.layout import Layout
from hmi.training.data.rows import Row
from hmi.training.fit.backbones import ModuleBackbone, PromptBackbone
from hmi.training.fit.features import dev_examples
from hmi.training.fit.trainer import reading_trainer
from hmi.training.for_stages import prompts as training
from hmi.training.tasks.splits import encoded_split
from tests.e2e.conftest import Home, jsonl, mood_rows
from tests.hmi.labs.api_world import hmi
from tests.hmi.labs.build_lab import attempt
from tests.tiny import random_texts

MOOD, OTHER = ModelId("acme", "mood"), ModelId("globex", "mood")
GAMMAS = [-50, -35, -20, -10, 0]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "EPOCHS", 1)


@contextmanager
def restored(home: Home) -> Iterator[ModelRecord]:
    """The record of acme.mood, which is as it was in the end."""
    before = home.manager.registry.model(MOOD)
    try:
        yield before
    finally:
        home.manager.registry.change_model(MOOD, lambda _: before)


def changed(home: Home, objective: Objective, **live: Any) -> None:
    def change(record: ModelRecord) -> ModelRecord:
        version = record.live.model_copy(update=live)
        versions = tuple(version if v.version == version.version else v for v in record.versions)
        return record.model_copy(update={"versions": versions, "objective": objective})

    home.manager.registry.change_model(MOOD, change)


def profiled(
    home: Home, *, prompts: bool = True, reading: Reading = AS_IT_IS, **files: bytes
) -> dict[str, Any]:
    job = home.manager.tokens.profile(str(MOOD), files, prompts=prompts, reading=reading)
    made = attempt(home.manager, job, fine_tune.run)
    assert made is not None
    return made


def unlabelled() -> bytes:
    return jsonl([{"text": text} for text in random_texts(25, seed=23)])


def test_a_job_publishes_a_profile_and_the_command_shows_it(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    with restored(home) as record:
        before, old, folder = record.live, home.state(str(MOOD)), home.settings.data
        files = set(folder.rglob("*"))
        said = mood_rows(7, 120).replace(b'"label"', b'"what"')
        made = profiled(home, data=said, unlabelled=unlabelled(), reading=Reading(label_column="what"))
        assert made["published"]
        live = home.manager.registry.model(MOOD).live
        kept = [each["count"] for each in live.metrics["tokens"]["prompts"] if each["kept"]]
        assert [point.gamma for point in live.tokens] == GAMMAS + kept
        at = {point.gamma: point for point in live.tokens}
        told = live.metrics["tokens"]
        assert (at[0].agreement, at[0].rows) == (1.0, told["labelled"] + 25)
        assert told["unseen"], "the rows that its training held out, and those that it never saw"
        assert told["saved"]["-50"] > told["saved"]["-10"] > told["saved"]["0"] == 0.0
        assert {each["count"] for each in told["prompts"]} == {2, 8}
        same = {"task", "labels", "rules", "module", "ramps", "temperature", "plot_version", "max_length"}
        assert live.model_dump(include=same) == before.model_dump(include=same)
        new = home.state(str(MOOD))
        assert all(torch.equal(new[name], value) for name, value in old.items())
        assert {name for name in new if name not in old} == {f"prompts.{count}" for count in kept}
        new_in = {path.relative_to(folder).parts[0] for path in set(folder.rglob("*")) - files}
        assert new_in <= {"adapters", "jobs", "profiles"}, "nothing of it outlives the model's artefacts"
        data = ("--data", folder)
        shown = hmi(capsys, "model", "tokens", MOOD, *data)
        assert "merge 50%" in shown
        assert "no agreement under load is set" in shown
        said = hmi(capsys, "model", "objective", MOOD, "--agreement-under-load", 0.6, "--json", *data)
        assert json.loads(said)["objective"]["agreement_under_load"] == 0.6
        found = json.loads(hmi(capsys, "model", "tokens", MOOD, "--json", *data))
        assert found["points"][GAMMAS.index(0)]["allowed"]
        assert found["tokens"]["state"] in ("allowed", "nothing allowed")
        assert "tokens" in hmi(capsys, "model", "show", MOOD, *data)


def test_a_profile_without_training_keeps_the_prompts_and_the_ramps_stay(home: Home) -> None:
    with restored(home):
        prompts = torch.randn(2, 2, 32, generator=torch.Generator().manual_seed(4)).half()
        planted(home, "prompts.2", prompts)
        before = home.manager.registry.model(MOOD).live
        profiled(home, prompts=False, data=mood_rows(7, 100))
        live = home.manager.registry.model(MOOD).live
        assert [point.gamma for point in live.tokens] == [*GAMMAS, 2]
        assert live.metrics["tokens"]["prompts"] == []
        assert live.metrics["tokens"]["saved"]["2"] < 0.0
        assert torch.equal(home.state(str(MOOD))["prompts.2"], prompts)
        assert live.ramps == before.ramps != ()
        # Ramps are trained beside a profile, and an update drops it, since it is of other weights.
        job = home.manager.train_ramps(str(MOOD), unlabelled=unlabelled())
        assert attempt(home.manager, job, fine_tune.run)
        again = home.manager.registry.model(MOOD).live
        assert again.tokens == live.tokens
        assert "prompts.2" in home.state(str(MOOD))
        job = home.manager.update_model(str(MOOD), data=mood_rows(7), options={"epochs": 1}, publish="always")
        assert attempt(home.manager, job, fine_tune.run)
        updated = home.manager.registry.model(MOOD).live
        assert updated.tokens == ()
        assert "tokens" not in updated.metrics
        assert "prompts.2" not in home.state(str(MOOD))
        assert home.manager.rollback_model(str(MOOD), again.version).live.tokens == live.tokens


def planted(home: Home, name: str, prompts: Tensor) -> str:
    """Let acme.mood have these prompts and a profile that allows them; returns its artefact."""
    tensors = {**home.state(str(MOOD)), name: prompts}
    artefact, size = home.manager.adapters.put(tensors)
    points = tuple(TokenPoint(gamma=g, score=0.9, agreement=1.0, rows=500) for g in (0, 2))
    changed(home, Objective(agreement_under_load=0.9), artefact=artefact, bytes=size, tokens=points)
    return artefact


class Always(RoundRobin):
    """Every batch runs under one setting of token adaptation."""

    def __init__(self, setting: Setting) -> None:
        super().__init__([TokenAdaptation()])
        self.setting = setting

    def plan(self, candidates: Any, now: float) -> Plan:
        chosen: Candidate = min(candidates)
        return Plan(chosen, {"tokens": self.setting})


async def answers(home: Home, setting: Setting) -> list[TextResult | Exception]:
    """The answers to texts of a model with prompts and of one without, in one batch."""
    engine = home.engine(None, Always(setting), precision="fp32")
    await engine.start()
    found: list[TextResult | Exception] = []
    for model in (MOOD, OTHER):
        texts = [TextRequest(model, text, scores=True, provenance=True) for text in home.covered[:4]]
        try:
            found += await engine.infer(texts)
        except Exception as error:
            found.append(error)
    await engine.stop()
    return found


def in_training(home: Home, version: ModelVersion, prompts: Tensor) -> list[Tensor]:
    """The outputs that training computes for the same texts."""
    assert version.module is not None
    root = load_root(Layout(home.settings.data).root(version.root, version.root_version))
    trainer = reading_trainer(
        root, version.module, task_of_version(version), Artefact.split(home.state(str(MOOD)))
    )
    assert isinstance(trainer.backbone, ModuleBackbone)
    split = encoded_split(
        [Row(text, "") for text in home.covered[:4]], root.tokenizer, version.max_length, windows=False
    )
    with home.manager.plots.reader(version.plot_version) as reader:
        examples = dev_examples(root, reader, split, trainer.plan.lexical)
        return trainer.predict(examples, exact=True, backbone=PromptBackbone(trainer.backbone, prompts))


async def test_a_served_text_gets_its_models_prompts(home: Home) -> None:
    draw = torch.Generator().manual_seed(4)
    with restored(home):
        layers, dim = 2, 32
        prompts = torch.randn(layers, 2, dim, generator=draw).half()
        planted(home, "prompts.2", prompts)
        plain, with_two = [await answers(home, setting) for setting in (Setting("off"), prompting(2))]
        version = home.manager.registry.model(MOOD).live
        wanted = in_training(home, version, prompts.float())
    for i, (one, other) in enumerate(zip(plain, with_two, strict=True)):
        assert isinstance(one, TextResult)
        assert isinstance(other, TextResult)
        assert other.provenance is not None
        if i < 4:
            assert other.provenance.stages == {"tokens": "prompts 2"}
            scores = torch.tensor([other.scores[label] for label in version.labels])  # type: ignore[index]
            torch.testing.assert_close(scores, wanted[i].softmax(-1), atol=1e-4, rtol=1e-3)
            assert one.scores != other.scores
        else:
            assert other.provenance.stages == {}
            assert one.scores == other.scores


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("prompts.2", (2, 3, 32), r"prompts\.2 is \[2, 3, 32\]"),
        ("prompts.2", (3, 2, 32), "2 upper layers of 32"),
    ],
)
async def test_odd_prompts_are_refused_and_other_models_answer(
    home: Home, name: str, shape: tuple[int, ...], words: str
) -> None:
    with restored(home):
        planted(home, name, torch.ones(shape).half())
        error, *others = await answers(home, prompting(2))
    assert isinstance(error, Damaged)
    with pytest.raises(Damaged, match=words):
        raise error
    assert len(others) == 4
    assert all(isinstance(answer, TextResult) for answer in others)


def test_errors_name_the_field_and_the_cure(home: Home) -> None:
    profile = home.manager.tokens.profile
    with pytest.raises(InvalidInput, match="a profile is made of labelled rows"):
        profile(str(MOOD), {"unlabelled": unlabelled()})
    with pytest.raises(InvalidData, match="label"):
        profile(str(MOOD), {"data": unlabelled()})
    strange = jsonl([{"text": f"text {i}", "label": "abc"[i % 3]} for i in range(40)])
    for rows, words in (
        (strange, "data has the label 'a', which the model"),
        (mood_rows(9, 10), "at least 20"),
    ):
        job = profile(str(MOOD), {"data": rows})
        with pytest.raises(InvalidData, match=words):
            attempt(home.manager, job, fine_tune.run)
        home.manager.cancel_job(job.job)
