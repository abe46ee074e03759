"""MPNet's relative attention: a number for each head and bucket of distance, added to the scores before the
softmax.

The source shares one table between its layers; here each layer holds its own copy (a few hundred numbers), so
that lower layers, upper layers and a fine-tuned copy can be split and stored like any other.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

MAX_DISTANCE = 128
"""Keys this far away or farther share the last bucket of their side."""


def relative_bias(table: Tensor, keys: int, queries: int | None = None) -> Tensor:
    """table [buckets, heads] -> what is added to the scores of the first `queries` rows (all by default) of a
    text of `keys` tokens: [heads, queries, keys]."""
    by_distance = table[_buckets_around(keys, len(table))].t()
    # Row r: distances r - (keys - 1) and on, as the query keys - 1 - r sees them.
    rows = by_distance.unfold(1, keys, 1)
    return rows[:, keys - (keys if queries is None else queries) :].flip(1)


def bucket_of(distances: Tensor, buckets: int) -> Tensor:
    """Key's position - query's position (int64) -> its bucket: exact while near, in logarithmic steps up to
    MAX_DISTANCE, the second half of the buckets for keys on the right."""
    half = buckets // 2
    exact = half // 2
    away = distances.abs()
    steps = torch.log(away.clamp(min=1).float() / exact) / math.log(MAX_DISTANCE / exact) * (half - exact)
    far = (exact + steps.to(torch.int64)).clamp(max=half - 1)
    return torch.where(away < exact, away, far) + half * (distances > 0)


@lru_cache(maxsize=1024)
def _buckets_around(length: int, buckets: int) -> Tensor:
    # Kept for later calls, which may need gradients: no inference tensor.
    with torch.inference_mode(False):
        return bucket_of(torch.arange(1 - length, length), buckets)
