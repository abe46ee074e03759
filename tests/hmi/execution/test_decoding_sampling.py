"""The choice of tokens, against the processors of transformers and plain arithmetic."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hmi_kernels.decoder import ops

from hmi.execution.decoding import sampling
from hmi.execution.decoding.sampling import Sampler
from hmi.execution.decoding.scores import HostRow
from hmi.model.text.sampling import Sampling

VOCAB = 300


def row_of(seed: int, spread: float = 2.0, size: int = VOCAB) -> np.ndarray[Any, np.dtype[np.float32]]:
    row = (spread * np.random.default_rng(seed).standard_normal(size)).astype(np.float32)
    row[0] = -np.inf
    return row


@pytest.mark.parametrize("size", [64, 100, 5000])
@pytest.mark.parametrize("k", [1, 3, 64])
def test_the_best_words_are_found(size: int, k: int) -> None:
    row = np.round(row_of(k, size=size), 1)  # with equal scores
    row[[5, size - 1]] = np.nan
    ids, scores, total = ops.best(row, k, 0.5)
    there = np.flatnonzero(row > -np.inf)
    want = there[np.argsort(-row[there], kind="stable")][:k]
    assert ids.tolist() == want.tolist()
    assert scores.tolist() == row[want].tolist()
    assert total == pytest.approx(torch.tensor(row[there] * 0.5).logsumexp(0).item(), rel=1e-5)
    assert ops.best(np.full(size, -np.inf, np.float32), k)[0].tolist() == []


def by_transformers(row: Any, wants: Sampling, prompt: list[int]) -> torch.Tensor:
    from transformers.generation import logits_process as own

    scores, ids = torch.tensor(row)[None], torch.tensor([prompt])
    if wants.repetition_penalty != 1:
        scores = own.RepetitionPenaltyLogitsProcessor(wants.repetition_penalty)(ids, scores)
    scores = own.TemperatureLogitsWarper(wants.temperature)(ids, scores)
    if wants.top_k:
        scores = own.TopKLogitsWarper(wants.top_k)(ids, scores)
    if wants.top_p < 1:
        scores = own.TopPLogitsWarper(wants.top_p)(ids, scores)
    if wants.min_p:
        scores = own.MinPLogitsWarper(wants.min_p)(ids, scores)
    return scores.softmax(-1)[0]


CASES = [
    Sampling(temperature=1.0),
    Sampling(temperature=0.7, top_k=20),
    Sampling(temperature=1.3, top_k=150),
    Sampling(temperature=0.8, top_p=0.6),
    Sampling(temperature=2.5, top_p=0.97),
    Sampling(temperature=1.0, min_p=0.05),
    Sampling(temperature=3.0, min_p=0.001),
    Sampling(temperature=1.1, top_k=40, top_p=0.8, min_p=0.02, repetition_penalty=1.4),
    Sampling(temperature=0.3, top_k=5, top_p=0.2),
]


@pytest.mark.parametrize("wants", CASES)
def test_probabilities_are_those_of_transformers(wants: Sampling, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers that stand evenly in 0 to 1 choose each word as often as its probability says."""
    count, prompt = 4000, [3, 3, 17, 250]
    row = row_of(1)
    want = by_transformers(row, wants, prompt)
    even = iter([(2 * i + 1) * 2**63 // count for i in range(count)])
    monkeypatch.setattr(sampling.xxhash, "xxh3_64_intdigest", lambda *_, **__: next(even))
    found = Counter(Sampler(wants, prompt).choose(HostRow(row.copy())).id for _ in range(count))
    got = torch.tensor([found[i] / count for i in range(VOCAB)])
    assert (got - want).abs().max() < 1.5 / count
    assert set(found) <= set(want.nonzero()[:, 0].tolist())


def test_a_choice_depends_on_the_seed_and_the_place_alone() -> None:
    rows, wants = [row_of(i) for i in range(40)], Sampling(temperature=1.5)
    texts = set()
    for seed in range(5):
        sampler, again = (Sampler(replace(wants, seed=seed), []) for _ in range(2))
        first = [sampler.choose(HostRow(row.copy())).id for row in rows]
        assert [again.choose(HostRow(row.copy())).id for row in rows] == first
        texts.add(tuple(first))
    assert len(texts) == 5
    numbers = [
        Sampler(replace(wants, seed=s), []).choose(HostRow(np.zeros(64, np.float32))).id for s in range(6400)
    ]
    counts = np.bincount(numbers, minlength=64)
    assert ((counts - 100) ** 2 / 100).sum() < 120, "seeds are not drawn evenly"  # 63 degrees: p = 1e-5


def test_penalties_of_what_was_written() -> None:
    row = np.zeros(VOCAB, np.float32)
    row[[0]] = -np.inf
    row[[8, 9]] = 2.0, 1.9
    often = Sampler(Sampling(presence_penalty=0.05), [9])
    assert [often.choose(HostRow(row.copy())).id for _ in range(3)] == [8, 8, 8]
    often = Sampler(Sampling(frequency_penalty=0.06), [9])
    assert [often.choose(HostRow(row.copy())).id for _ in range(4)] == [8, 8, 9, 8]
    both = Sampler(Sampling(repetition_penalty=1.1), [8])
    assert [both.choose(HostRow(row.copy())).id for _ in range(2)] == [9, 8]


def test_told_probabilities_are_the_models_own() -> None:
    row = row_of(4)
    sampler = Sampler(
        Sampling(temperature=0.5, top_k=1, repetition_penalty=3.0, logprobs=4), [int(row.argmax())]
    )
    chosen = sampler.choose(HostRow(row.copy()))
    want = torch.tensor(row).log_softmax(-1)
    assert chosen.id != row.argmax()
    assert chosen.logprob == pytest.approx(want[chosen.id].item(), abs=1e-4)
    top = want.topk(4)
    assert [i for i, _ in chosen.best] == top.indices.tolist()
    assert [x for _, x in chosen.best] == pytest.approx(top.values.tolist(), abs=1e-4)
    assert Sampler(Sampling(logprobs=0), []).choose(HostRow(row.copy())).best == []
    with pytest.raises(ValueError, match="no word has a score"):
        Sampler(Sampling(), []).choose(HostRow(np.full(VOCAB, np.nan, np.float32)))
