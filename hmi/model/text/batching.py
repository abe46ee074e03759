"""Tokenised texts, padding, and batches grouped by length: shared by training, PLOT builds and tests."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

STEP_TOKENS, READ_TOKENS = 1_024, 2_048
"""The most tokens, with padding, that training and reading compute at once. They bound the memory of both: a
larger batch is computed in parts (`in_parts`), and a training step adds up their gradients."""
LONG = 256
"""Tokens of a text from which its attention, which grows by the square, takes most of a step's memory."""


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


def pad_ids(rows: Sequence[Sequence[int]], multiple: int = 1) -> Tensor:
    """Ids of B texts -> int64 [B, T], padded with 0 to the longest, and then to a multiple of `multiple`."""
    out = torch.zeros(len(rows), _rounded_up(max(map(len, rows)), multiple), dtype=torch.int64)
    for i, row in enumerate(rows):
        out[i, : len(row)] = torch.tensor(row)
    return out


def pad_rows(rows: Sequence[Tensor], multiple: int = 1) -> tuple[Tensor, Tensor]:
    """B tensors [T_i, dim] -> fp32 [B, T, dim], padded as by `pad_ids`, and a mask [B, T] that is true at
    tokens."""
    lengths = torch.tensor([len(r) for r in rows])
    out = torch.zeros(len(rows), _rounded_up(int(lengths.max()), multiple), rows[0].shape[1])
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out, torch.arange(out.shape[1])[None] < lengths[:, None]


def _rounded_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def in_parts(rows: Sequence[int], lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Cut a batch into parts, in its order, so that each takes at most as much memory as `tokens` tokens.

    Padding counts, and beyond LONG tokens a text takes memory by the square of its length, for attention.
    rows: indices of `lengths`. A text that takes more is a part of its own.
    """
    part: list[int] = []
    longest = 0
    for row in rows:
        longest = max(longest, lengths[row])
        if part and (len(part) + 1) * longest * max(longest, LONG) > tokens * LONG:
            yield part
            part, longest = [], lengths[row]
        part.append(row)
    if part:
        yield part


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
