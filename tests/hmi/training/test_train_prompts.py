"""Training prompts raises the score where prompts can, changes nothing else, and else keeps none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hmi.core import TaskRules
from hmi.jobs.stage.profile_tokens import hold_out_rows
from hmi.model.tasks import KINDS, TaskKind
from hmi.model.tenant.modules import TenantModule
from hmi.model.text.batching import Encoded
from hmi.training.data.rows import Row
from hmi.training.fit.backbones import Examples, ModuleBackbone
from hmi.training.fit.plan import TrainPlan
from hmi.training.fit.trainer import Trainer
from hmi.training.for_stages import prompts
from hmi.training.for_stages.prompts import Labelled, train_prompts
from hmi.training.tasks.row_keys import joined_keys, key_of
from hmi.training.tasks.splits import Split, task_targets
from tests.hmi.execution.test_fused import BERT, DEPTH, module, upper

TASK: TaskKind = KINDS["classification"](("a", "b"), TaskRules())
TOKENS = 5


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "LR", 0.05)
    monkeypatch.setattr(prompts, "EPOCHS", 4)


def labelled(count: int, seed: int) -> Labelled:
    """Texts of noise whose rows lean to one side or the other, by their label."""
    draw = torch.Generator().manual_seed(seed)
    side = torch.randn(BERT.dim, generator=torch.Generator().manual_seed(0))
    rows = [Row(f"text {seed} {i}", "ab"[i % 2]) for i in range(count)]
    x = [torch.randn(TOKENS, BERT.dim, generator=draw) + (side if i % 2 else -side) for i in range(count)]
    encoded = [Encoded([1] * TOKENS, [0] * TOKENS, [0] * TOKENS) for _ in rows]
    split = Split(rows, encoded)
    lengths, types = [TOKENS] * count, [[0] * TOKENS] * count
    return Labelled(split, Examples(lengths, types, lambda of: [x[i] for i in of], task_targets(TASK, split)))


def reading(fit: Labelled, offset: float) -> Trainer:
    """A model whose head tells the labels apart, but leans to one of them by `offset`."""
    mine: TenantModule = module(BERT, "lora", 2)
    plan = TrainPlan("classification", 2, lr=1e-3, epochs=1, batch=16, seed=0)
    nothing = Examples([], [], lambda of: [], [])
    trainer = Trainer(ModuleBackbone(upper(BERT), mine, BERT.heads), BERT.dim, plan, nothing)
    seen: list[Tensor] = []
    with torch.inference_mode():
        handle = trainer.head.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        trainer.predict(fit.examples, exact=True)
        handle.remove()
        read = torch.cat(seen).clone()  # batches of equal lengths keep the rows' order
        signs = torch.tensor([1.0 if row.label == "a" else -1.0 for row in fit.split.rows])
        mean = read.mean(0)
        inner = read - mean
        # A ridge: there are more features than rows, and rounding would decide among the exact solutions.
        weight = torch.linalg.solve(inner.T @ inner + 0.01 * torch.eye(inner.shape[1]), inner.T @ signs)
    trainer.head.out.weight.data = torch.stack([weight, -weight])
    bias = offset - weight @ mean
    trainer.head.out.bias.data = torch.stack([bias, -bias])
    return trainer


def state(trainer: Trainer) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in trainer.state().joined().items()}


def test_prompts_help_where_they_can_and_nothing_else_changes() -> None:
    fit, held = labelled(96, 1), labelled(40, 2)
    model = reading(fit, offset=2.0)
    before = state(model)
    steps: list[tuple[int, int]] = []
    made = train_prompts(model, TASK, fit, held, 2, lambda done, total: steps.append((done, total)))
    assert made.before <= 0.6
    assert made.kept
    assert made.score >= 0.9
    assert made.tensor.shape == (DEPTH, 2, BERT.dim)
    assert made.tensor.dtype == torch.float16
    assert steps[-1][0] == steps[-1][1]
    after = state(model)
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_prompts_of_a_model_that_is_right_already_are_not_kept() -> None:
    fit, held = labelled(96, 1), labelled(40, 2)
    made = train_prompts(reading(fit, offset=0.0), TASK, fit, held, 8, lambda done, total: None)
    assert made.before == 1.0
    assert not made.kept
    assert made.figures["kept"] is False


def test_rows_are_divided_by_what_the_model_was_trained_on() -> None:
    every = sorted((Row(f"text {i}", "a") for i in range(100)), key=key_of)
    fit, held = hold_out_rows(every, [], joined_keys(every[:70]))
    assert (fit, held) == (every[:70], every[70:])
    fit, held = hold_out_rows(every, [], joined_keys(every[:5]))
    assert len(held) == 47
    assert not {key_of(row) for row in fit} & {key_of(row) for row in held}
    assert not {key_of(row) for row in held} & {key_of(row) for row in every[:5]}
    fit, held = hold_out_rows(every, [], joined_keys(every))
    assert (len(fit), len(held)) == (90, 10)
    fit, held = hold_out_rows(every, every[:30], joined_keys([]))
    assert (fit, held) == (every[30:], every[:30])
