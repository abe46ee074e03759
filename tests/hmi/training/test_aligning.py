"""The map that scores alignments is fitted on the rows, and training rows get scores of maps without them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hmi.core import TaskRules
from hmi.model.sources.root import Root
from hmi.model.tasks import task_of
from hmi.model.tenant.alignment import FIGURES, aligned_size
from hmi.model.text.batching import pad_ids
from hmi.training.data.rows import Row
from hmi.training.fit import alignment
from hmi.training.fit.alignment import FOLDS, fit_alignment
from hmi.training.fit.backbones import Examples
from hmi.training.fit.trainer import reading_trainer, tenant_trainer
from hmi.training.tasks.splits import Split, split_bags
from tests.hmi.training.test_training import MODULE, PLAN, quiet
from tests.tiny import random_texts

DIM, ROWS = 4, 200


def loss(scores: Tensor, targets: Sequence[Sequence[float]]) -> Tensor:
    return F.cross_entropy(scores, torch.tensor([int(t[0]) for t in targets]))


def problem(noise: float = 0.0) -> tuple[Tensor, list[list[float]]]:
    """Alignments [ROWS, size], and labels that depend on one figure and on one number of a vector."""
    g = torch.Generator().manual_seed(0)
    x = torch.rand(ROWS, aligned_size(DIM), generator=g)
    told = x[:, 3] + x[:, FIGURES + 5] + noise * torch.randn(ROWS, generator=g)
    return x, [[float(v > told.median())] for v in told]


def accuracy(scores: Tensor, targets: list[list[float]]) -> float:
    return float((scores.argmax(-1) == torch.tensor(targets)[:, 0]).float().mean())


def test_the_map_learns_from_figures_and_vectors() -> None:
    x, targets = problem()
    alignment, held_out = fit_alignment(lambda rows: x[list(rows)], targets, 2, loss)
    assert accuracy(alignment(x), targets) > 0.95
    assert accuracy(held_out, targets) > 0.7


def test_labels_that_nothing_tells_are_known_by_heart_but_not_in_the_scores_of_rows_held_out() -> None:
    x, targets = problem(noise=100.0)
    alignment, held_out = fit_alignment(lambda rows: x[list(rows)], targets, 2, loss)
    assert accuracy(held_out, targets) < 0.65
    assert accuracy(alignment(x), targets) > accuracy(held_out, targets)


def test_a_row_decides_nothing_about_its_own_score() -> None:
    x, targets = problem()
    _, before = fit_alignment(lambda rows: x[list(rows)], targets, 2, loss)
    changed = [[1.0 - t[0]] if i == 7 else t for i, t in enumerate(targets)]
    _, after = fit_alignment(lambda rows: x[list(rows)], changed, 2, loss)
    same = torch.arange(ROWS) % FOLDS == 7 % FOLDS
    assert torch.equal(before[same], after[same])
    assert not torch.equal(before[~same], after[~same])


def test_rows_beyond_the_most_get_the_scores_of_the_map(monkeypatch: pytest.MonkeyPatch) -> None:
    x, targets = problem()
    monkeypatch.setattr(alignment, "MOST_ROWS", 150)
    fitted, scores = fit_alignment(lambda rows: x[list(rows)], targets, 2, loss)
    assert torch.equal(scores[150:], fitted(x[150:]))
    assert not torch.equal(scores[:150], fitted(x[:150]))


def test_few_rows_and_rows_that_all_agree_give_finite_scores() -> None:
    x, targets = problem()
    for count in (1, 2, 7):
        fitted, scores = fit_alignment(lambda rows: x[list(rows)], targets[:count], 2, loss)
        assert scores.shape == (count, 2)
        assert bool(torch.isfinite(fitted(x)).all() and torch.isfinite(scores).all())
    same = torch.ones(9, aligned_size(DIM))
    assert bool(torch.isfinite(fit_alignment(lambda rows: same[list(rows)], [[1.0]] * 9, 2, loss)[1]).all())


def pairs(root: Root, buckets: int) -> Examples:
    """Pairs labelled by whether the second text has a word that the first one lacks."""
    texts = random_texts(48, 5)
    rows = [Row((t, t if i % 2 else f"{t} cell"), "same" if i % 2 else "more") for i, t in enumerate(texts)]
    split = Split(rows, root.tokenizer.encode([row.text for row in rows], 64))
    assert root.lower is not None
    lower = root.lower

    def features(some: Sequence[int]) -> list[Tensor]:
        return [lower(pad_ids([split.encoded[i].ids]))[0] for i in some]

    types, targets = [e.types for e in split.encoded], [[i % 2] for i in range(len(rows))]
    bags = split_bags(split, buckets, features)
    return Examples([len(e) for e in split.encoded], types, features, targets, bags)


def test_a_trained_pair_keeps_its_alignment_and_another_fits_its_own(tiny_root: Root) -> None:
    train, plan = (
        pairs(tiny_root, 8),
        replace(PLAN, task="pair", paired=True, lexical=8, aligned=True, epochs=1),
    )
    trainer = tenant_trainer(tiny_root, MODULE, plan, train)
    fitted = trainer.state().lexical
    assert fitted["alignment.vectors"].any()
    list(trainer.epochs(quiet))
    state, outputs = trainer.state(), trainer.predict(train)
    for name in ("alignment.weight", "alignment.vectors", "alignment.bias"):
        assert torch.equal(state.lexical[name], fitted[name]), "no step may train the alignment"
    task = task_of("pair", ("more", "same"), TaskRules(paired=True))
    for a, b in zip(reading_trainer(tiny_root, MODULE, task, state).predict(train), outputs, strict=True):
        torch.testing.assert_close(a, b)
    fewer = replace(train, targets=train.targets[:20])
    updated = tenant_trainer(tiny_root, MODULE, plan, fewer)
    own = updated.state().lexical["alignment.vectors"]
    updated.start_from(state)
    assert torch.equal(updated.state().lexical["alignment.vectors"], own)
    assert torch.equal(updated.state().head["out.weight"], state.head["out.weight"])


def test_a_model_without_an_alignment_is_read_without_one(tiny_root: Root) -> None:
    train = pairs(tiny_root, 8)
    plan = replace(PLAN, task="pair", paired=True, lexical=8, epochs=1)
    earlier = tenant_trainer(tiny_root, MODULE, plan, train)
    list(earlier.epochs(quiet))
    task = task_of("pair", ("more", "same"), TaskRules(paired=True))
    read = reading_trainer(tiny_root, MODULE, task, earlier.state())
    assert read.lexical is not None
    assert read.lexical.alignment is None
    for a, b in zip(read.predict(train), earlier.predict(train), strict=True):
        torch.testing.assert_close(a, b)
