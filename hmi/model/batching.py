"""Tokenised texts, padded batches, and length-grouped order: shared by training, building and tests."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Encoded:
    """One tokenised text: ids and token types, [CLS] first and [SEP] last, and the word of each token."""

    ids: list[int]
    types: list[int]
    words: list[int | None]
    truncated: bool = False

    def __len__(self) -> int:
        return len(self.ids)


def pad_ids(rows: Sequence[Sequence[int]]) -> Tensor:
    """Ragged ids -> int64 [B, T], padded with 0."""
    out = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)
    for i, row in enumerate(rows):
        out[i, : len(row)] = torch.tensor(row)
    return out


def pad_rows(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Ragged [T_i, dim] -> fp32 [B, T, dim] and its mask [B, T]."""
    lengths = torch.tensor([len(r) for r in rows])
    out = torch.zeros(len(rows), int(lengths.max()), rows[0].shape[1])
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out, torch.arange(out.shape[1])[None] < lengths[:, None]


def length_grouped(lengths: Sequence[int], size: int, rng: random.Random | None) -> Iterator[list[int]]:
    """Indices in batches of like lengths; shuffled where `rng` is given, else from short to long."""
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
