"""Tokenised texts, padding, and batches grouped by length: shared by training, PLOT builds and tests."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Encoded:
    """One tokenised text or pair, with its special tokens."""

    ids: list[int]
    """Token ids: [CLS] first, [SEP] last."""
    types: list[int]
    """Token types: 0 in the first text, 1 in the second."""
    words: list[int | None]
    """The index of the word that each token is part of; None for special tokens."""
    truncated: bool = False
    """Whether tokens were cut off."""

    def __len__(self) -> int:
        return len(self.ids)


def pad_ids(rows: Sequence[Sequence[int]]) -> Tensor:
    """Ids of B texts -> int64 [B, T], padded with 0 to the longest."""
    out = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)
    for i, row in enumerate(rows):
        out[i, : len(row)] = torch.tensor(row)
    return out


def pad_rows(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """B tensors [T_i, dim] -> fp32 [B, T, dim], padded with 0, and a mask [B, T] that is true at tokens."""
    lengths = torch.tensor([len(r) for r in rows])
    out = torch.zeros(len(rows), int(lengths.max()), rows[0].shape[1])
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out, torch.arange(out.shape[1])[None] < lengths[:, None]


def length_grouped(lengths: Sequence[int], size: int, rng: random.Random | None) -> Iterator[list[int]]:
    """Yield the indices of `lengths` in batches of `size`, each of similar lengths.

    With `rng` the batches are shuffled; without it they go from short to long.
    """
    order = list(range(len(lengths)))
    if rng is None:
        order.sort(key=lengths.__getitem__)
        yield from (order[i : i + size] for i in range(0, len(order), size))
        return
    rng.shuffle(order)
    batches: list[list[int]] = []
    for start in range(0, len(order), size * 20):
        pool = sorted(order[start : start + size * 20], key=lengths.__getitem__)
        batches += [pool[i : i + size] for i in range(0, len(pool), size)]
    rng.shuffle(batches)
    yield from batches
