"""Alignment: how well each of two texts is found in the other, what of it is not, and scores from this.

A few upper layers over rows that know three tokens only do not learn from some hundred rows to match two
texts word by word. So a pair is also aligned before the upper layers: each token is compared with every token
of the other text, by its id and by the cosine of the rows that enter the upper layers. The token with the
highest cosine is its match. The figures of each of the two texts, EACH in all, are

- the share of its tokens that the other text has, as it is and with tokens weighted by rarity
- the mean of its tokens' best cosines (BERTScore: Zhang et al., 2020), as it is and weighted
- its three lowest best cosines
- the largest weight of a token that the other text lacks; the largest weight times (1 - best cosine); the
  largest weight of a token that the other text has. Here a text's weights have the mean 1
- the share of its pairs of neighbouring tokens that the other text has
- the share of its neighbouring tokens whose matches are in the same order
- the logarithm of the number of its tokens

Its vectors, VECTORS of the rows' size, are the weighted mean and the maximum, number by number, of abs(row -
row of the match), and the mean of the rows weighted by rarity times (1 - best cosine). So they say what is
different, as decomposable attention does (Parikh et al., 2016), but nothing of the comparison is learnt.

A linear map of the standardised figures, their squares and the vectors gives scores, which are added to the
head's. `hmi.training.fit.alignment` fits it. The design and measurements are in docs/design/0027-pairs.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain

import numpy as np
import torch
from hmi_kernels.text.pairs import EACH, MOST, VECTORS, align, score
from numpy.typing import NDArray
from torch import Tensor, nn

from hmi.model.text.batching import Encoded

FIGURES = 2 * EACH
"""The number of a pair's figures: those of its first text, then those of its second."""
KINDS = 2 * VECTORS
"""The number of a pair's vectors: those of its first text, then those of its second."""
COMMON = 1_000
"""Tokens with smaller ids are as common as possible. In the vocabularies of BERT's tokenizers these are
punctuation and single characters."""
LEAST_WEIGHT = 0.05
"""The weight of the commonest tokens."""
MAX_OUTPUTS = 32
"""A model with more outputs than this has no alignment: its map would be larger than the module."""


class Alignment(nn.Module):
    """Scores [pairs, outputs] from alignments [pairs, `aligned_size`]. No gradient trains it.

    mean, scale [FIGURES]: those of the training rows' figures. weight [outputs, 2 · FIGURES], vectors
    [outputs, KINDS · dim], bias [outputs]: the map, initially zero.
    """

    mean: Tensor
    scale: Tensor
    weight: Tensor
    vectors: Tensor
    bias: Tensor

    def __init__(self, outputs: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(FIGURES))
        self.register_buffer("scale", torch.ones(FIGURES))
        self.register_buffer("weight", torch.zeros(outputs, 2 * FIGURES))
        self.register_buffer("vectors", torch.zeros(outputs, KINDS * dim))
        self.register_buffer("bias", torch.zeros(outputs))

    def terms(self, figures: Tensor) -> Tensor:
        """figures [pairs, FIGURES] -> the terms [pairs, 2 · FIGURES] that `weight` multiplies."""
        x = ((figures - self.mean) / self.scale).clamp(-float(MOST), float(MOST))
        return torch.cat([x, x * x - 1], dim=-1)

    def forward(self, aligned: Tensor) -> Tensor:
        """aligned [pairs, `aligned_size`] -> [pairs, outputs]. A pair's are the same bits in every batch."""
        out = torch.empty(len(aligned), len(self.bias))
        mean, scale, weight, vectors, bias = (
            part.contiguous().numpy()
            for part in (self.mean, self.scale, self.weight, self.vectors, self.bias)
        )
        score(aligned.contiguous().numpy(), mean, scale, weight, vectors, bias, out.numpy())
        return out


def alignment_from(state: Mapping[str, Tensor]) -> Alignment:
    """Rebuild from the tensors of its `state_dict`."""
    outputs, size = state["vectors"].shape
    alignment = Alignment(outputs, size // KINDS)
    alignment.load_state_dict(dict(state))
    return alignment


def aligned_size(dim: int) -> int:
    """The numbers of a pair's alignment: FIGURES, and KINDS vectors of `dim` numbers."""
    return FIGURES + KINDS * dim


def aligned_of(rows: Tensor, windows: Sequence[Encoded]) -> Tensor:
    """The alignments fp32 [windows, `aligned_size`] of pairs of texts.

    rows fp32 [tokens, dim]: the windows' rows that enter the upper layers, one window after another. The
    numbers are 0 for a window in which one of the two texts has no token.
    """
    ids = np.array(list(chain.from_iterable(window.ids for window in windows)), np.int64)
    sides = np.array(list(chain.from_iterable(map(_sides, windows))), np.int8)
    offsets = np.array(list(accumulate(map(len, windows), initial=0)), np.int64)
    out = np.empty((len(windows), aligned_size(rows.shape[1])), np.float32)
    align(ids, sides, rarities(ids), rows.contiguous().numpy(), offsets, out)
    return torch.from_numpy(out)


def rarities(ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """The weight of each token by its id: vocabularies list their tokens from common to rare."""
    return (np.log(np.maximum(ids, COMMON) / COMMON) + LEAST_WEIGHT).astype(np.float32)


def _sides(window: Encoded) -> list[int]:
    """The text that each token belongs to, 0 or 1; -1 for [CLS] and [SEP]."""
    pairs = zip(window.types, window.words, strict=True)
    return [-1 if word is None else kind for kind, word in pairs]
