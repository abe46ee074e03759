"""The rule by which a model says that it does not know: a text is unlike the model's own texts.

A text's vector is the mean of the rows that the PLOT gives for its tokens, so it is there before any upper
layer runs, and no execution stage changes it. The biases of position and type are left out: they differ
between short and long texts, whatever these say. Each number of a vector is counted from the mean of other
texts, in units of their standard deviation. A model keeps the mean vector of the rows of each label, or of
all its rows if its rows have no single label. The cosine of a text's vector and the nearest of these means is
then made comparable between lengths, since the mean of few rows is further from any other mean. The result
is the text's similarity. A model knows a text whose similarity reaches the threshold, which is the one that a
share of the tenant's own rows reach (`hmi.training.fit.novelty`). Functions over arrays; loads no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hmi.model.tenant.novelty_threshold import SHARES

Vectors = NDArray[np.float32]

LEAST = 1e-12
"""Shorter vectors count as this long, so that none is divided by 0."""
LEAST_SPREAD = 0.1
"""This fraction of the mean standard deviation is added to each, so that no number of a vector outweighs the
others because other texts hardly differ in it. None is less than this fraction of the own texts', in case the
root's tokenizer has no words for the other texts."""


@dataclass(frozen=True)
class Others:
    """What the vectors of other texts are like."""

    centre: Vectors
    """[dim]: their mean."""
    spread: Vectors
    """[dim]: their standard deviation, none of it 0."""

    @classmethod
    def of(cls, vectors: Vectors, own: Vectors) -> Others:
        """What these vectors [texts, dim] are like. own: those of the model's own texts."""
        spread = vectors.std(0)
        spread = np.maximum(spread + LEAST_SPREAD * spread.mean(), LEAST_SPREAD * own.std(0))
        return cls(vectors.mean(0), np.maximum(spread, LEAST))

    def standardised(self, vectors: Vectors) -> Vectors:
        """Vectors [texts, dim], counted from the mean in units of the standard deviation."""
        out: Vectors = (vectors - self.centre) / self.spread
        return out


@dataclass(frozen=True)
class OwnTexts:
    """What a model keeps of its own texts.

    A version of an earlier release has `means` alone. Its vectors have the biases of position and type, and
    its similarities are plain cosines.
    """

    means: Vectors
    """[labels, dim], of length 1, of standardised vectors."""
    others: Others | None = None
    lengths: Vectors | None = None
    """[3, knots]: numbers of tokens, ascending, and the factor and offset that make the cosine of a text of
    that length the one that a text of the model's usual length would have."""

    @classmethod
    def of(cls, tensors: Mapping[str, Vectors]) -> OwnTexts | None:
        """What the tensors of an artefact's part `known` say; None if there are none. The inverse of
        `tensors`."""
        if {"own", "centre", "spread", "lengths"} <= tensors.keys():
            others = Others(tensors["centre"], tensors["spread"])
            return cls(tensors["own"], others, tensors["lengths"])
        return cls(tensors["means"]) if "means" in tensors else None

    @property
    def tensors(self) -> dict[str, Vectors]:
        """The tensors of an artefact. `own` is not called `means`, since an earlier release would compare
        other vectors with it."""
        assert self.others is not None, "only a training stores them"
        assert self.lengths is not None, "the same"
        others = {"centre": self.others.centre, "spread": self.others.spread}
        return {"own": self.means, **others, "lengths": self.lengths}

    def fits(self, dim: int) -> bool:
        """Return whether the tensors are of a root of this size."""
        if self.means.ndim != 2 or self.means.shape[1] != dim:
            return False
        if self.others is None or self.lengths is None:
            return True
        sizes = self.others.centre.shape, self.others.spread.shape
        return sizes == ((dim,), (dim,)) and self.lengths.ndim == 2 and self.lengths.shape[0] == 3

    def similarities(self, vectors: Vectors, tokens: Sequence[int]) -> Vectors:
        """The similarity of texts with these vectors [texts, dim] and numbers of tokens: [texts].

        The vectors are without the biases of position and type, unless `others` is None.
        """
        if self.others is None or self.lengths is None:
            return similarities(vectors, self.means)
        found = similarities(self.others.standardised(vectors), self.means)
        return by_length(found, tokens, self.lengths)


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


def similarities(vectors: Vectors, means: Vectors) -> Vectors:
    """The cosine of each vector and the nearest of the means, which have length 1: [vectors]."""
    out: Vectors = (_scaled(vectors) @ means.T).max(-1)
    return out


def by_length(found: Vectors, tokens: Sequence[int], lengths: Vectors) -> Vectors:
    """The cosines that texts of the usual length would have. found: those of texts with these numbers of
    tokens. lengths: as in `OwnTexts`; between its knots by interpolation, beyond them as at the last one."""
    at, knots = np.log(np.asarray(tokens, np.float32)), np.log(lengths[0])
    out = found * np.interp(at, knots, lengths[1]) + np.interp(at, knots, lengths[2])
    return np.asarray(out, np.float32)


def at_shares(own: NDArray[np.float32]) -> tuple[float, ...]:
    """The similarity that each of SHARES of these similarities reach."""
    return tuple(round(float(x), 6) for x in np.quantile(own, [1 - share for share in SHARES]))


def _scaled(vectors: Vectors) -> Vectors:
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    out: Vectors = vectors / np.maximum(lengths, LEAST)
    return out
