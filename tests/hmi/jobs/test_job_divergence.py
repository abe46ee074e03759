"""A training that diverges is refused, and the published module is the one that was scored."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hmi.errors import InvalidData
from hmi.model.sources.root import Root
from hmi.training.fit.backbones import Examples
from hmi.training.fit.trainer import tenant_trainer
from tests.hmi.training.test_training import MODULE, PLAN, examples, quiet


def test_a_loss_that_is_no_number_ends_the_training_at_once(tiny_root: Root) -> None:
    train = examples(tiny_root, 0)

    def broken(rows: list[int]) -> list[torch.Tensor]:
        return [x * float("nan") for x in train.features(rows)]

    steps: list[int] = []
    trainer = tenant_trainer(
        tiny_root, MODULE, PLAN, Examples(train.lengths, train.types, broken, train.targets)
    )  # type: ignore[arg-type]
    with pytest.raises(InvalidData, match=r"diverged .* step 1\)") as caught:
        list(trainer.epochs(lambda step, total, loss: steps.append(step)))
    assert steps == []
    assert caught.value.details["field"] == "options.lr"


def test_a_diverging_learning_rate_is_refused(tiny_root: Root) -> None:
    trainer = tenant_trainer(tiny_root, MODULE, replace(PLAN, lr=1e5, epochs=3), examples(tiny_root, 0))

    def train() -> None:
        for _ in trainer.epochs(lambda step, total, loss: None):
            trainer.publishable(trainer.state())

    with pytest.raises(InvalidData, match="use a lower lr"):
        train()


def test_what_is_published_is_what_predicts(tiny_root: Root) -> None:
    trainer = tenant_trainer(tiny_root, MODULE, replace(PLAN, epochs=1), examples(tiny_root, 0))
    list(trainer.epochs(quiet))
    test = examples(tiny_root, 1, 10)
    state = trainer.state()
    full = torch.stack(trainer.predict(test))
    published = trainer.publishable(state)
    assert {value.dtype for value in published.joined().values()} == {torch.float16}
    rounded = torch.stack(trainer.predict(test))
    again = tenant_trainer(tiny_root, MODULE, replace(PLAN, epochs=1), examples(tiny_root, 0))
    again.load(published.map(lambda value: value.float()))
    assert torch.equal(torch.stack(again.predict(test)), rounded)
    assert not torch.equal(full, rounded)
    torch.testing.assert_close(full, rounded, atol=0.05, rtol=0.05)


def test_a_number_beyond_fp16_is_not_published(tiny_root: Root) -> None:
    trainer = tenant_trainer(tiny_root, MODULE, PLAN, examples(tiny_root, 0))
    state = trainer.state()
    next(iter(state.joined().values())).view(-1)[0] = 1e6
    with pytest.raises(InvalidData, match="not finite in 16 bits"):
        trainer.publishable(state)
