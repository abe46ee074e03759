"""MPNet's relative attention: a bias for each head and bucket of distance, added to the attention scores.

The source shares one table of a few hundred numbers among all layers. Here each layer has its own copy, so
that lower layers, upper layers and fine-tuned copies can be split and stored like those of other models.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

MAX_DISTANCE = 128
"""Keys at this distance and beyond share the last bucket of their side."""


def relative_bias(table: Tensor, keys: int, queries: int | None = None) -> Tensor:
    """table [buckets, heads] -> the bias [heads, queries, keys] of a text of `keys` tokens.

    The queries are the text's first `queries` tokens, by default all.
    """
    # Row r has the distances r - (keys - 1), …, r: those of the query at position keys - 1 - r.
    rows = by_distance(table, keys).unfold(1, keys, 1)
    return rows[:, keys - (keys if queries is None else queries) :].flip(1)


def by_distance(table: Tensor, keys: int) -> Tensor:
    """table [buckets, heads] -> what is added at each distance of key less query, from 1 - keys to keys - 1:
    [heads, 2 keys - 1]."""
    return table[_buckets_around(keys, len(table))].t()


def bucket_of(distances: Tensor, buckets: int) -> Tensor:
    """The bucket of each distance, the key's position minus the query's (int64).

    Small distances have a bucket each, larger ones share buckets in logarithmic steps up to MAX_DISTANCE.
    Keys to the right of the query use the second half of the buckets.
    """
    half = buckets // 2
    exact = half // 2
    away = distances.abs()
    steps = torch.log(away.clamp(min=1).float() / exact) / math.log(MAX_DISTANCE / exact) * (half - exact)
    far = (exact + steps.to(torch.int64)).clamp(max=half - 1)
    return torch.where(away < exact, away, far) + half * (distances > 0)


@lru_cache(maxsize=1024)
def _buckets_around(length: int, buckets: int) -> Tensor:
    # The cached tensor must not be an inference tensor, since later calls may need gradients.
    with torch.inference_mode(False):
        return bucket_of(torch.arange(1 - length, length), buckets)
