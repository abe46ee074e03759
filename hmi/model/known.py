"""The rule by which a model says that it does not know: a text is unlike the model's own texts.

A text's vector is the mean of the rows that the PLOT gives for its tokens, so it is there before any upper
layer runs, and no execution stage changes it. A model keeps the mean vector of the rows of each label, or of
all its rows if its rows have no single label. A text's similarity is the cosine of its vector and the nearest
of these means. A model knows a text whose similarity reaches the threshold. The threshold is the similarity
that a share of the tenant's own rows reach (`hmi.training.knowing`). Functions over arrays; loads no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hmi.model.shares import SHARES

Vectors = NDArray[np.float32]

LEAST = 1e-12
"""Shorter vectors count as this long, so that none is divided by 0."""


def mean_rows(rows: Vectors, offsets: Sequence[int]) -> Vectors:
    """The vectors of windows, [windows, dim]: means of rows [tokens, dim]. Window i has the rows
    offsets[i]:offsets[i + 1], at least one."""
    # A product is some ten times as fast as reduceat, and as mean.
    ones = np.ones(max(np.diff(offsets)), np.float32)
    out = np.empty((len(offsets) - 1, rows.shape[1]), np.float32)
    for i, (start, end) in enumerate(pairwise(offsets)):
        np.dot(ones[: end - start], rows[start:end], out=out[i])
        out[i] /= end - start
    return out


def class_means(vectors: Vectors, groups: Sequence[str]) -> Vectors:
    """The mean vector of each group, scaled to length 1, [groups, dim]. groups: that of each vector."""
    names, which = np.unique(np.asarray(groups), return_inverse=True)
    sums = np.zeros((len(names), vectors.shape[1]), np.float32)
    np.add.at(sums, which, vectors)
    return _scaled(sums)


def similarities(vectors: Vectors, means: Vectors) -> NDArray[np.float32]:
    """The cosine of each vector and the nearest of the means, which have length 1: [vectors]."""
    out: NDArray[np.float32] = (_scaled(vectors) @ means.T).max(-1)
    return out


def at_shares(own: NDArray[np.float32]) -> tuple[float, ...]:
    """The similarity that each of SHARES of these similarities reach."""
    return tuple(round(float(x), 6) for x in np.quantile(own, [1 - share for share in SHARES]))


def _scaled(vectors: Vectors) -> Vectors:
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    out: Vectors = vectors / np.maximum(lengths, LEAST)
    return out
