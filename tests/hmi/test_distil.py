"""Making the lower layers local: each step must bring the root nearer to its source, and ship without loss."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from hmi.errors import Damaged
from hmi.model.distil import (
    DistilPlan,
    distil_lower,
    fit_ridge,
    init_slots,
    make_batch,
    measure_fidelity,
    random_cover,
    sample_batches,
    train_upper,
)
from hmi.model.encoder import Encoder
from hmi.model.locality import apply_locality, save_locality
from hmi.model.root import split_encoder
from hmi.model.tokenizer import Tokenizer
from tests.tiny import random_texts

PLAN = DistilPlan(steps=60, upper_steps=60, tokens_per_step=128, lr=1e-3, upper_lr=1e-3)


def quiet(step: int, total: int, loss: float) -> None:
    assert loss == loss, "the loss is not a number"


def test_ridge_distillation_and_cotraining_each_lower_the_error(
    tiny_source: Path, teacher: Encoder, tmp_path: Path
) -> None:
    tokenizer = Tokenizer(tiny_source / "tokenizer.json")
    texts = tokenizer.encode(random_texts(300), 64)
    held_out = [make_batch(tokenizer.encode(random_texts(40, seed=9), 64))]
    parts = split_encoder(teacher, 2, tokenizer.cls_id)
    lower, upper, bias = parts
    batches = sample_batches(texts, 256, random.Random(0))
    warm = [next(batches) for _ in range(8)]
    init_slots(lower, teacher, warm[0])
    errors = [measure_fidelity(lower, bias, upper, teacher, held_out)]
    fit_ridge(lower, bias, teacher, warm, 0.03)
    errors.append(measure_fidelity(lower, bias, upper, teacher, held_out))
    distil_lower(lower, bias, teacher, texts, PLAN, quiet)
    errors.append(measure_fidelity(lower, bias, upper, teacher, held_out))
    train_upper(lower, bias, upper, teacher, texts, PLAN, quiet)
    errors.append(measure_fidelity(lower, bias, upper, teacher, held_out))
    split = [e["split_relative_error"] for e in errors]
    assert split[1] < 0.9 * split[0], f"ridge regression did not help: {split}"
    assert split[2] < split[1], f"distillation did not help: {split}"
    assert errors[3]["last_relative_error"] < errors[2]["last_relative_error"], "co-training did not help"

    path = tmp_path / "weights.zst"
    start = split_encoder(teacher, 2, tokenizer.cls_id)
    size = save_locality(path, parts, start, {"source_sha256": "x", "split": 2, "fidelity": errors[3]})
    assert size == path.stat().st_size
    again = split_encoder(teacher, 2, tokenizer.cls_id)
    about = apply_locality(path, again)
    assert about["fidelity"] == errors[3]
    shipped = measure_fidelity(again[0], again[2], again[1], teacher, held_out)
    assert abs(shipped["last_relative_error"] - errors[3]["last_relative_error"]) < 0.005, shipped

    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(Damaged, match="do not fit"):
        apply_locality(path, split_encoder(teacher, 2, tokenizer.cls_id))


def test_dropped_neighbours_are_dropped_consistently() -> None:
    """The pair (i, i+1) is at hand as right bigram of i exactly when it is as left bigram of i + 1."""
    ids = torch.ones(3, 9, dtype=torch.int64)
    rng, g = random.Random(1), torch.Generator().manual_seed(1)
    covers = [c for c in (random_cover(ids, rng, g) for _ in range(20)) if c is not None]
    assert covers
    for cover in covers:
        left, right = cover.left.view(3, 9), cover.right.view(3, 9)
        assert torch.equal(left[:, 1:], right[:, :-1])
