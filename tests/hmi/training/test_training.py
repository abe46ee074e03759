"""Fine-tuning on a tiny root: it learns, resumes exactly, and never changes the root."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hmi.core import JobRecord, ModuleSpec, Task, TaskRules
from hmi.jobs.options import FineTuneOptions
from hmi.jobs.specs import FineTuneSpec
from hmi.model.files import read_tensors, write_checkpoint
from hmi.model.sources.root import Root
from hmi.model.tasks import task_of
from hmi.model.tenant.artefact import Artefact
from hmi.model.text.batching import pad_ids
from hmi.training.fit.backbones import Examples
from hmi.training.fit.checkpoint import resume_training, write_training
from hmi.training.fit.early_stopping import Best, History, train_to_best
from hmi.training.fit.plan import TrainPlan, plan_training, plan_writing
from hmi.training.fit.trainer import tenant_trainer
from hmi.training.plans.defaults import choose_epochs, default_lr, default_module
from hmi.training.plans.recipe import Recipe
from tests.tiny import random_texts


def examples(root: Root, seed: int, count: int = 60) -> Examples:
    """Texts labelled by whether they hold the word `good`."""
    texts = [t + (" good" if i % 2 else " bad") for i, t in enumerate(random_texts(count, seed))]
    encoded = root.tokenizer.encode(texts, 64)
    assert root.lower is not None
    lower = root.lower

    def features(rows: list[int]) -> list[torch.Tensor]:
        out = []
        for i in rows:
            ids = pad_ids([encoded[i].ids])
            positions = torch.arange(len(encoded[i]))[None]
            out.append(root.bias(lower(ids), positions, torch.zeros_like(ids))[0])
        return out

    return Examples(
        [len(e) for e in encoded], [e.types for e in encoded], features, [[i % 2] for i in range(count)]
    )  # type: ignore[arg-type]


MODULE = ModuleSpec(rank=4)
PLAN = TrainPlan("classification", 2, lr=1e-2, epochs=10, batch=8, seed=3)


def quiet(step: int, total: int, loss: float) -> None:
    assert 0 < step <= total
    assert loss == loss, "the loss is not a number"


def test_training_learns_and_leaves_the_root_unchanged(tiny_root: Root) -> None:
    before = {k: v.clone() for k, v in tiny_root.upper.state_dict().items()}
    trainer = tenant_trainer(tiny_root, MODULE, PLAN, examples(tiny_root, 0))
    assert list(trainer.epochs(quiet)) == list(range(1, 11))
    test = examples(tiny_root, 1)
    hits = sum(int(x.argmax()) == t[0] for x, t in zip(trainer.predict(test), test.targets, strict=True))
    assert hits >= 54, f"{hits} of 60: the planted word was not learnt"
    assert all(torch.equal(v, before[k]) for k, v in tiny_root.upper.state_dict().items())


@pytest.mark.parametrize("average", [False, True])
def test_a_resumed_run_equals_an_unbroken_one(tiny_root: Root, average: bool) -> None:
    train, plan = examples(tiny_root, 0), replace(PLAN, average=average)
    unbroken = tenant_trainer(tiny_root, MODULE, plan, train)
    list(unbroken.epochs(quiet))
    first = tenant_trainer(tiny_root, MODULE, plan, train)
    runs = first.epochs(quiet)
    for _ in range(3):
        next(runs)
    state = {**first.state().joined(), **{k: v.clone() for k, v in first.optimiser_state().items()}}
    second = tenant_trainer(tiny_root, MODULE, plan, train)
    second.load(Artefact.split(state))
    second.load_optimiser(state)
    list(second.epochs(quiet, start=3))
    with unbroken.averaged(), second.averaged():
        for name, value in unbroken.state().joined().items():
            assert torch.equal(second.state().joined()[name], value), name


def test_the_average_is_that_of_the_steps_and_training_goes_on_without_it(tiny_root: Root) -> None:
    train = examples(tiny_root, 0, count=16)
    plain = tenant_trainer(tiny_root, MODULE, replace(PLAN, epochs=40), train)
    mean: dict[str, torch.Tensor] = {}

    def follow(step: int, total: int, loss: float) -> None:
        decay = min((step - 1) / (step + 9), 0.98)
        for name, value in plain.state().joined().items():
            mean[name] = value if step == 1 else decay * mean[name] + (1 - decay) * value

    list(plain.epochs(follow))
    averaging = tenant_trainer(tiny_root, MODULE, replace(PLAN, epochs=40, average=True), train)
    for _ in averaging.epochs(quiet):
        with averaging.averaged():
            inside = averaging.state().joined()
    for name, value in plain.state().joined().items():
        assert torch.equal(averaging.state().joined()[name], value), name
        torch.testing.assert_close(inside[name], mean[name], atol=1e-6, rtol=1e-4)
    assert any(not torch.equal(inside[name], value) for name, value in plain.state().joined().items())


def test_epochs_follow_the_data() -> None:
    assert choose_epochs(20, 16) == 12
    assert choose_epochs(300, 16) == 11
    assert choose_epochs(2_000, 16) == 8
    assert choose_epochs(16_000, 16) == 5
    assert choose_epochs(100_000, 16) == 3
    for batch in (8, 16):
        counts = [choose_epochs(rows, batch, writing=True) for rows in (20, 200, 450, 20_000)]
        assert counts == [12, 8, 4, 4 if batch == 16 else 3]


def test_a_language_models_batch_follows_its_completions_unless_it_is_given() -> None:
    for tokens, batch in (([10, 10], 8), ([10, 11], 2), ([], 8)):
        assert plan_writing(Recipe(), tokens).batch == batch
        assert plan_writing(Recipe(batch=16), tokens).batch == 16


def test_the_usual_rate_follows_the_task_and_falls_with_rank_and_rows() -> None:
    def rate(task: Task, paired: bool = False, rows: int = 2_000, **module: Any) -> float:
        return default_lr(task_of(task, ("B-x", "O"), TaskRules(paired=paired)), ModuleSpec(**module), rows)

    assert rate("tagging") > rate("classification") > rate("pair") == rate("regression", paired=True)
    assert rate("tagging", rank=4) == rate("tagging")
    assert rate("tagging", rank=32) == rate("tagging") / 2 == rate("tagging", kind="lora+ln", rank=32)
    assert rate("tagging", kind="parallel", rank=53) == rate("tagging")
    assert (
        rate("pair", kind="sequential", rank=400)
        == rate("regression", paired=True, kind="ln")
        == 4 * rate("pair")
    )
    assert rate("tagging", rows=20) == rate("tagging") == 2 * rate("tagging", rows=8_000)


def test_aligned_pairs_get_lower_rates_and_only_those_with_lexical_features_are_aligned() -> None:
    def planned(labels: int = 3, lexical: bool | None = None) -> TrainPlan:
        task = task_of("pair", tuple(map(str, range(labels))), TaskRules(paired=True))
        return plan_training(Recipe(lexical=lexical), task, 2_000)

    assert (planned().aligned, planned().lr) == (True, 1e-3)
    assert (planned(lexical=False).aligned, planned(lexical=False).lr) == (False, 4e-3)
    assert not planned(labels=40).aligned
    single = task_of("classification", ("a", "b"), TaskRules())
    assert not plan_training(Recipe(lexical=True), single, 2_000).aligned


def test_pairs_have_a_module_of_their_own() -> None:
    assert default_module(paired=False) == ModuleSpec(kind="lora", rank=8)
    assert default_module(paired=True) == ModuleSpec(kind="sequential", rank=79)


@pytest.mark.parametrize("lacking", ["average.0", "head.query"])
def test_a_checkpoint_of_an_earlier_version_is_not_gone_on_from(
    tiny_root: Root, tmp_path: Path, lacking: str
) -> None:
    plan = replace(PLAN, queries=2, average=True)
    path = tmp_path / "checkpoint.safetensors"
    trainer = tenant_trainer(tiny_root, MODULE, plan, examples(tiny_root, 0))
    next(trainer.epochs(quiet))
    write_training(path, trainer, History(1, Best(1, trainer.state(), {"accuracy": 0.5})), "why")
    fresh = tenant_trainer(tiny_root, MODULE, plan, examples(tiny_root, 0))
    resumed = resume_training(path, fresh)
    assert resumed is not None
    best = resumed.history.kept
    assert (resumed.history.epochs, best.epoch, best.metrics, resumed.remark) == (
        1,
        1,
        {"accuracy": 0.5},
        "why",
    )
    found = best.artefact.joined()
    assert all(torch.equal(value, found[name]) for name, value in trainer.state().joined().items())
    about = {"epoch": 1, "best": {"epoch": 1, "accuracy": 0.5}}
    write_checkpoint(path, read_tensors(path), about)
    again = resume_training(path, fresh)
    assert again is not None
    assert again.remark is None, "of a release that kept none"
    write_checkpoint(path, {k: v for k, v in read_tensors(path).items() if k != lacking}, about)
    assert resume_training(path, fresh) is None


@pytest.mark.parametrize("stopped_after", [0, 3, 5])
def test_training_ends_after_epochs_without_a_better_score_also_when_it_is_resumed(
    tiny_root: Root, stopped_after: int
) -> None:
    scores = {1: 0.5, 2: 0.7, 3: 0.6, 4: 0.65, 5: 0.1}
    trainer = tenant_trainer(tiny_root, MODULE, replace(PLAN, patience=3), examples(tiny_root, 0, count=16))
    seen: list[History] = []

    def judge() -> dict[str, float]:
        return {"accuracy": scores[(seen[-1].epochs if seen else 0) + 1]}

    whole = train_to_best(trainer, judge, quiet, after_epoch=seen.append)
    assert [(h.epochs, h.kept.epoch) for h in seen] == [(1, 1), (2, 2), (3, 2), (4, 2), (5, 2)]
    assert (whole, whole.kept.score, whole.scores) == (seen[-1], 0.7, tuple(scores.values()))
    if stopped_after:
        start = seen[stopped_after - 1]
        del seen[stopped_after:]
        again = train_to_best(trainer, judge, quiet, start=start, after_epoch=seen.append)
        assert (again.epochs, again.kept.epoch, len(seen)) == (5, 2, 5)


def test_the_last_of_equal_epochs_is_kept_and_where_scores_are_chance_the_last_of_all(
    tiny_root: Root,
) -> None:
    train = examples(tiny_root, 0, count=16)
    for keep_best, scores, best in ((True, (0.5, 0.5, 0.4), 2), (False, (0.5, 0.4, 0.1), 3)):
        given = iter(scores)
        trainer = tenant_trainer(tiny_root, MODULE, replace(PLAN, epochs=3), train)
        kept = train_to_best(
            trainer, lambda given=given: {"accuracy": next(given)}, quiet, keep_best=keep_best
        ).kept
        assert kept.epoch == best


def test_an_artefact_is_its_parts(tiny_root: Root) -> None:
    plan = replace(PLAN, queries=2, lexical=8)
    state = tenant_trainer(tiny_root, MODULE, plan, examples(tiny_root, 0, count=16)).state()
    tensors = state.joined()
    assert {name.split(".")[0] for name in tensors} == {"module", "head", "lexical"}
    again = Artefact.split({**tensors, "optimiser.0.step": torch.zeros(1), "headless": torch.zeros(1)})
    assert again.joined().keys() == tensors.keys()
    assert all(value is tensors[name] for name, value in again.joined().items())
    assert {value.dtype for value in state.map(lambda value: value.half()).joined().values()} == {
        torch.float16
    }


def test_a_recipe_has_the_options_of_a_user_and_the_defaults_of_all() -> None:
    assert FineTuneOptions().recipe() == Recipe()
    given = FineTuneOptions(lr=0.01, epochs=2, seed=3, lexical=True, start="a.b", module=MODULE)
    assert given.recipe() == Recipe(module=MODULE, lr=0.01, epochs=2, seed=3, lexical=True)
    task = task_of("classification", ("a", "b"))
    plan = plan_training(Recipe(), task, 300)
    assert (plan.lr, plan.epochs, plan.queries > 0, plan.average) == (2e-3, 11, True, True)
    plain = plan_training(given.recipe().plain(5e-5), task, 300)
    assert (plain.lr, plain.epochs, plain.seed) == (5e-5, 11, 3)
    assert (plain.lexical, plain.queries, plain.average) == (0, 0, False)


def test_a_job_reads_the_spec_that_the_manager_wrote_and_those_of_other_releases() -> None:
    spec = FineTuneSpec(
        model="a.b", domain="d", task="pair", mode="create", options=FineTuneOptions(epochs=2)
    )
    stored = spec.stored()
    assert stored["options"] == FineTuneOptions(epochs=2).model_dump(mode="json"), "whole"
    assert "publish" not in stored

    def of(spec: dict[str, Any]) -> FineTuneSpec:
        return FineTuneSpec.of(JobRecord(job="j", kind="fine_tune", state="queued", created="", spec=spec))

    assert of({**stored, "inputs": ["data"], "of a later release": 1}) == spec
    assert of({**stored, "options": None}).options == FineTuneOptions()
    assert of({**stored, "mode": "update"}).source == "a.b"
