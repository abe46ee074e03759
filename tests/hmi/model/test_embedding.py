"""Embeddings of roots with shipped weights against their source's; skipped where it is not installed."""

from __future__ import annotations

import pytest
import torch

from hmi.errors import UnsupportedModel
from hmi.execution.packed import PackedExecutor, run_rows
from hmi.model.sources.locality import apply_locality, shipped_locality
from hmi.model.sources.root import split_encoder
from hmi.model.sources.source import DEFAULT_PACKAGE, find_source, load_encoder
from hmi.model.tasks import task_of
from hmi.model.tenant.heads import pool_rows
from hmi.model.text.batching import pad_ids
from hmi.model.text.tokenizer import Tokenizer

TEXTS = [
    "Oil prices rose sharply after OPEC agreed to cut output.",
    "How do I reset my password?",
    "The patient was treated with aspirin for acute chest pain.",
    "A man is playing a guitar on stage.",
]


@pytest.mark.parametrize("split", [1, 2, 3])
def test_the_embeddings_of_a_root_with_shipped_weights_are_near_the_sources(split: int) -> None:
    try:
        source = find_source(DEFAULT_PACKAGE)
    except UnsupportedModel:
        pytest.skip(f"{DEFAULT_PACKAGE} is not installed")
    encoder, tokenizer = load_encoder(source.folder), Tokenizer(source.folder / "tokenizer.json")
    lower, upper, bias = parts = split_encoder(encoder, split, tokenizer.cls_id)
    shipped = shipped_locality(source.sha256, split)
    assert shipped is not None
    apply_locality(shipped, parts)
    task = task_of("embedding")
    ours, theirs = [], []
    with torch.inference_mode():
        for text in tokenizer.encode(TEXTS, 256):
            ids = pad_ids([text.ids])
            mask, types = torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids)
            x = bias(lower(ids), torch.arange(len(text))[None], types)
            rows = run_rows(PackedExecutor(upper, encoder.shape), x[0], [0, len(text)], [None])[None]
            ours.append(torch.tensor(task.answer(pool_rows("mean", rows, rows, types, mask)[0]).embedding))
            true = encoder(ids, mask)[0].mean(0)
            theirs.append(true / true.norm())
    a, b = torch.stack(ours), torch.stack(theirs)
    cosines = (a * b).sum(-1)
    assert float(cosines.min()) > 0.9, cosines
    assert float((a @ a.T - b @ b.T).abs().max()) < 0.12, "how alike two texts are must hold, too"
