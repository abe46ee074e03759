"""A batch that is computed in parts gives what it gives at once. Parts bound the memory."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from hmi.core import Task
from hmi.model.sources.root import Root
from hmi.model.text.batching import in_parts
from hmi.training.fit import learner, trainer
from hmi.training.plans.recipe import RECIPE
from hmi.training.second import probing
from hmi.training.second.probing import Embedder
from hmi.training.second.teachers import TeacherSource
from hmi.training.tasks.objectives import OBJECTIVES
from hmi.training.tasks.objectives.base import IGNORE, SoftTarget
from hmi.training.tasks.transitions import Transitions
from tests.hmi.training.test_teachers import mood, sources
from tests.hmi.training.test_training import MODULE, PLAN, examples

__all__ = ["sources"]  # a fixture


def test_parts_keep_the_order_and_their_bound() -> None:
    rng = random.Random(1)
    for _ in range(200):
        lengths = [rng.randint(1, 40) for _ in range(20)]
        rows = rng.sample(range(20), rng.randint(0, 20))
        parts = list(in_parts(rows, lengths, 64))
        assert [row for part in parts for row in part] == rows
        assert all(parts)
        assert all(len(part) == 1 or len(part) * max(lengths[i] for i in part) <= 64 for part in parts)
    assert list(in_parts([0, 1], [100, 100], 64)) == [[0], [1]], "a text that is too long is alone"
    assert list(in_parts(range(5), [256] * 5, 1_024)) == [[0, 1, 2, 3], [4]]
    assert list(in_parts(range(5), [512] * 5, 2_048)) == [[0, 1], [2, 3], [4]], "attention takes more"


SOFT = SoftTarget(((1, 0.6), (2, 0.4)))
TARGETS: dict[str, tuple[Task, list[list[float]]]] = {
    "labels": ("classification", [[0], [2], [1], [2]]),
    "soft labels": ("classification", [[0], [0.1, 0.2, 0.7], [1], [0.5, 0.25, 0.25]]),
    "sets": ("multilabel", [[0.0, 1.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [1.0, 1.0, 1.0]]),
    "values": ("regression", [[0.5], [2.0], [-1.0], [3.0]]),
    "tags": ("tagging", [[0, IGNORE, 2], [1], [IGNORE, IGNORE], [2, 2]]),
    "soft tags": ("tagging", [[0, IGNORE, SOFT], [1], [IGNORE, IGNORE], [SOFT, 2]]),
    "no words": ("tagging", [[IGNORE], [IGNORE, IGNORE], [IGNORE], [IGNORE]]),
}


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_loss_of_a_batch_is_that_of_its_parts(name: str, weighted: bool) -> None:
    task, targets = TARGETS[name]
    objective = OBJECTIVES[task]
    weights = torch.tensor([0.5, 1.0, 3.0]) if weighted and task != "regression" else None
    torch.manual_seed(0)
    size = (4, 3, 3) if task == "tagging" else (4, 1 if task == "regression" else 3)
    logits = torch.randn(*size)
    parts = [[0], [1, 2], [3]]
    masses = [objective.mass([targets[i] for i in part], weights) for part in parts]
    losses = [objective.loss(logits[part], [targets[i] for i in part], weights) for part in parts]
    total = sum(masses) or 1.0
    found = sum(mass / total * loss for mass, loss in zip(masses, losses, strict=True))
    torch.testing.assert_close(found, objective.loss(logits, targets, weights))
    if task == "tagging" and weights is None:
        paths = Transitions(3)
        torch.nn.init.normal_(paths.table)
        losses = [paths.loss(logits[part], [targets[i] for i in part]) for part in parts]
        found = sum(mass / total * loss for mass, loss in zip(masses, losses, strict=True))
        torch.testing.assert_close(found, paths.loss(logits, targets))


def test_a_step_in_parts_is_the_step_at_once(tiny_root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = replace(PLAN, dropout=0.0, weights=(1.0, 3.0))
    found = []
    for most in (10_000, 30):
        monkeypatch.setattr(learner, "STEP_TOKENS", most)
        monkeypatch.setattr(trainer, "READ_TOKENS", most)
        made = trainer.tenant_trainer(tiny_root, MODULE, plan, examples(tiny_root, 1))
        losses = list[float]()
        for _ in made.epochs(lambda step, total, loss, kept=losses: kept.append(loss)):
            break
        found.append((torch.tensor(losses), torch.stack(made.predict(examples(tiny_root, 2)))))
    torch.testing.assert_close(found[0], found[1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_contrasting_in_two_passes_has_the_gradients_of_one(
    sources: list[TeacherSource], monkeypatch: pytest.MonkeyPatch, dropout: float
) -> None:
    """With dropout the parts must draw the same in both passes, so the loss falls by its own gradient."""
    monkeypatch.setattr(
        "hmi.training.fit.precision.native_bf16", lambda: False
    )  # it would round off the difference
    monkeypatch.setattr(probing, "RECIPE", replace(RECIPE, dropout=dropout))
    rows = mood(1, 12)
    targets = torch.tensor([int(row.label == "good") for row in rows])
    gradients = list[Any]()
    for most in (10_000, 20):
        monkeypatch.setattr(probing, "STEP_TOKENS", most)
        embed = Embedder(sources[0], 32)
        trained = embed._backbone.trained
        assert trained is not None
        torch.manual_seed(5)
        loss = embed._contrasted(embed._examples([row.text for row in rows]), range(12), targets)
        gradients.append(
            (loss, {name: p.grad for name, p in trained.named_parameters() if p.grad is not None})
        )
    if not dropout:
        assert gradients[0][0] == pytest.approx(gradients[1][0], abs=1e-5)
        torch.testing.assert_close(gradients[0][1], gradients[1][1], atol=1e-5, rtol=1e-3)
        return
    embed = Embedder(sources[0], 32)
    trained = embed._backbone.trained
    assert trained is not None
    before, gradient = gradients[1]
    step = 1e-3
    with torch.no_grad():
        for name, p in trained.named_parameters():
            if name in gradient:
                p -= step * gradient[name]
    torch.manual_seed(5)
    after = embed._contrasted(embed._examples([row.text for row in rows]), range(12), targets)
    expected = step * sum(float(g.square().sum()) for g in gradient.values())
    assert before - after == pytest.approx(expected, rel=0.2)


def test_a_spare_source_is_tuned_itself(sources: list[TeacherSource]) -> None:
    for source in sources:
        spare = replace(source, spare=True)
        backbone, copied = spare.backbone(), source.backbone()
        assert backbone.trained is not None
        assert copied.trained is not None
        own = {p.data_ptr() for p in source.encoder.parameters()}
        assert {p.data_ptr() for p in backbone.trained.parameters()} <= own
        assert not {p.data_ptr() for p in copied.trained.parameters()} & own
        source.encoder.requires_grad_(False)
