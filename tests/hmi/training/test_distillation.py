"""Distillation of local lower layers: each step brings the root nearer to its source,
and export loses nothing."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from hmi.errors import Damaged
from hmi.model.network.encoder import Encoder
from hmi.model.sources.locality import apply_locality, save_locality
from hmi.model.sources.root import split_encoder
from hmi.model.text.batching import Encoded
from hmi.model.text.tokenizer import Tokenizer
from hmi.training.root.distillation import (
    DistilPlan,
    compute_features,
    distil_lower,
    fit_ridge,
    init_slots,
    make_batch,
    random_cover,
    run_upper,
    sample_batches,
    train_upper,
)
from hmi.training.root.fidelity import _beginning, fidelity_report, measure_fidelity
from hmi.training.root.joint import train_jointly
from tests.tiny import random_texts

PLAN = DistilPlan(
    steps=60,
    upper_steps=60,
    joint_steps=40,
    tokens_per_step=128,
    joint_tokens=128,
    lr=1e-3,
    upper_lr=1e-3,
    joint_lr=1e-3,
)


def quiet(step: int, total: int, loss: float) -> None:
    assert loss == loss, "the loss is not a number"


def test_each_phase_of_training_lowers_the_error(tiny_source: Path, teacher: Encoder, tmp_path: Path) -> None:
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
    train_jointly(parts, teacher, texts, PLAN, quiet)
    errors.append(measure_fidelity(lower, bias, upper, teacher, held_out))
    assert errors[4]["last_relative_error"] < errors[3]["last_relative_error"], "joint training did not help"

    path = tmp_path / "weights.zst"
    start = split_encoder(teacher, 2, tokenizer.cls_id)
    size = save_locality(path, parts, start, {"source_sha256": "x", "split": 2, "fidelity": errors[4]})
    assert size == path.stat().st_size
    again = split_encoder(teacher, 2, tokenizer.cls_id)
    about = apply_locality(path, again)
    assert about["fidelity"] == errors[4]
    shipped = measure_fidelity(again[0], again[2], again[1], teacher, held_out)
    assert abs(shipped["last_relative_error"] - errors[4]["last_relative_error"]) < 0.005, shipped

    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(Damaged, match="do not fit"):
        apply_locality(path, split_encoder(teacher, 2, tokenizer.cls_id))


@pytest.mark.parametrize("n", [2, 3, 5])
def test_random_covers_drop_some_ngrams_of_every_order_but_unigrams(n: int) -> None:
    ids = torch.ones(3, 40, dtype=torch.int64)
    rng, g = random.Random(1), torch.Generator().manual_seed(1)
    covers = [random_cover(ids, n, rng, g) for _ in range(20)]
    assert 0 < covers.count(None) < 20, "about half of the batches stay exact"
    for cover in covers:
        if cover is not None:
            assert set(cover.stored) == set(range(2, n + 1))
            assert all(0 < held.float().mean() < 1 for held in cover.stored.values())


@pytest.mark.parametrize("n", [2, 5])
def test_ridge_helps_at_other_lengths_of_n_grams(n: int, tiny_source: Path, teacher: Encoder) -> None:
    tokenizer = Tokenizer(tiny_source / "tokenizer.json")
    texts = tokenizer.encode(random_texts(300), 64)
    held_out = [make_batch(tokenizer.encode(random_texts(40, seed=9), 64))]
    lower, upper, bias = split_encoder(teacher, 2, tokenizer.cls_id, n)
    batches = sample_batches(texts, 256, random.Random(0))
    warm = [next(batches) for _ in range(8)]
    init_slots(lower, teacher, warm[0])
    before = measure_fidelity(lower, bias, upper, teacher, held_out)["split_relative_error"]
    fit_ridge(lower, bias, teacher, warm, 0.03)
    after = measure_fidelity(lower, bias, upper, teacher, held_out)["split_relative_error"]
    assert after < 0.9 * before


def test_fidelity_is_what_it_says_by_kind(tiny_source: Path, teacher: Encoder) -> None:
    tokenizer = Tokenizer(tiny_source / "tokenizer.json")
    lower, upper, bias = parts = split_encoder(teacher, 2, tokenizer.cls_id)
    texts = tokenizer.encode(random_texts(30), 64)
    whole, by_kind = fidelity_report(parts, teacher, {"general": texts[:20], "film": texts[20:]})
    assert set(by_kind) == {"general", "film", "short"}
    assert whole["split_relative_error"] != by_kind["film"]["split_relative_error"]
    got, want, cosines, means = [], [], [], []
    for text in texts[20:]:  # one by one, without batches or padding
        batch = make_batch([text])
        last = run_upper(upper, compute_features(lower, bias, batch), batch.mask, teacher.shape.heads)[0]
        true = teacher(batch.ids, batch.mask, batch.types)[0]
        got.append(last)
        want.append(true)
        cosines.append(torch.cosine_similarity(last[0], true[0], 0).item())
        means.append(torch.cosine_similarity(last.mean(0), true.mean(0), 0).item())
    g, w = torch.cat(got), torch.cat(want)
    slow = {
        "last_relative_error": (((g - w) ** 2).sum() / ((w - w.mean(0)) ** 2).sum()).item(),
        "token_cosine": torch.cosine_similarity(g, w, -1).mean().item(),
        "cls_cosine": sum(cosines) / len(cosines),
        "mean_cosine": sum(means) / len(means),
    }
    assert {name: by_kind["film"][name] for name in slow} == pytest.approx(slow, abs=2e-4)


def test_short_texts_are_beginnings_that_still_end() -> None:
    text = Encoded([2, *range(10, 40), 3], [0] * 32, list(range(32)))
    short = _beginning(text)
    assert short.ids == [2, *range(10, 20), 3]
    assert short.truncated
    pair = Encoded([2, 10, 3, 11, 12, 3], [0, 0, 0, 1, 1, 1], [None, 0, None, 0, 1, None])
    assert _beginning(pair).ids == [2, 10, 3]
    assert _beginning(Encoded([2, 9, 3], [0, 0, 0], [None, 0, None])).ids == [2, 9, 3]
