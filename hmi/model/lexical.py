"""Lexical features of words: spelling, case and neighbours, hashed into a small table of a tenant's own.

A tokenizer that lower-cases and cuts words into pieces throws away what names of genes, chemicals and products are
recognised by, and frozen layers cannot learn new words. A linear model of such features is cheap, is trained with the
module, and adds its scores to the head's. Source: feature-based taggers; hashing by Weinberger et al. (2009).

A word's features: itself in lower case, its shape (Aa0-), prefix and suffixes, its character trigrams and fourgrams;
of its direct neighbours the first six of these, of the next ones two; and the pair of it and the word before.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
import xxhash
from numpy.typing import NDArray
from torch import Tensor, nn

from kernels.cpu_words import FAR, NEAR, word_features

LONGEST = 64
"""Characters of a word that are looked at."""
SHAPE_RUNS = 8


class Features:
    """Bags of buckets: word w's are ids[offsets[w]:offsets[w + 1]]; ids int64 [F], offsets int64 [words + 1]."""

    def __init__(self, ids: NDArray[np.int64], offsets: NDArray[np.int64]) -> None:
        self.ids, self.offsets = torch.from_numpy(ids), torch.from_numpy(offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1


def features_of(words: Sequence[str], buckets: int) -> Features:
    """The buckets of each word of one text, with its neighbours'."""
    own = [codes_of(word) for word in words]
    starts = np.cumsum([0, *map(len, own)], dtype=np.int64)
    codes = np.concatenate(own) if own else np.empty(0, np.uint64)
    ids = np.empty(len(codes) + len(words) * (2 * NEAR + 2 * FAR + 1), np.int64)
    offsets = np.empty(len(words) + 1, np.int64)
    count = word_features(codes, starts, buckets, ids, offsets)
    return Features(ids[:count].copy(), offsets)


class Lexical(nn.Module):
    """Scores of words from their features: a table [buckets, labels], zero at first."""

    def __init__(self, buckets: int, labels: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(buckets, labels))

    @property
    def buckets(self) -> int:
        return len(self.table)

    def forward(self, bags: Sequence[Features], dropout: float = 0.0) -> Tensor:
        """Texts' features -> scores [words of all texts, labels]. `dropout` leaves out features, not scales them up:
        a word must be known by any part of its features."""
        ids = torch.cat([bag.ids for bag in bags])
        sizes = torch.cat([bag.offsets.diff() for bag in bags])
        weights = None if not dropout else (torch.rand(len(ids)) >= dropout).to(self.table.dtype)
        offsets = sizes.cumsum(0) - sizes
        return F.embedding_bag(ids, self.table, offsets, mode="sum", per_sample_weights=weights)


@lru_cache(maxsize=1 << 16)
def codes_of(word: str) -> NDArray[np.uint64]:
    """The word's own features as 64-bit codes, the ones that tell most first. Kept, since words come again."""
    word = word[:LONGEST]
    lower = word.lower()
    padded = f"<{lower}>"
    parts = [f"w{lower}", f"s{shape_of(word)}", f"p{lower[:3]}", f"3{lower[-3:]}", f"2{lower[-2:]}", f"4{lower[-4:]}"]
    parts += [f"c{padded[i : i + size]}" for size in (3, 4) for i in range(len(padded) - size + 1)]
    codes = np.array([xxhash.xxh3_64_intdigest(part.encode()) for part in parts], np.uint64)
    codes.flags.writeable = False
    return codes


def shape_of(word: str) -> str:
    """`IL-2Ra` -> `A-0Aa`: runs of upper case, lower case and digits become one sign each, other signs stay."""
    out = ""
    for sign in word:
        kind = "A" if sign.isupper() else "a" if sign.islower() else "0" if sign.isdigit() else sign
        if not out.endswith(kind):
            out += kind
    return out[:SHAPE_RUNS]
