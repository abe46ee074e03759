"""Alignment: figures that say how well each of two texts is found in the other, and scores from them.

A few upper layers over rows that know three tokens only do not learn from some hundred rows to match two
texts word by word. So a pair is also aligned before the upper layers: each token is compared with every token
of the other text, by its id and by the cosine of the rows that enter the upper layers. The figures of each of
the two texts, EACH in all, are

- the share of its tokens that the other text has, as it is and with tokens weighted by rarity
- the mean of its tokens' best cosines (BERTScore: Zhang et al., 2020), as it is and weighted
- its three lowest best cosines
- the largest weight of a token that the other text lacks; the largest weight times (1 - best cosine); the
  largest weight of a token that the other text has. Here a text's weights have the mean 1
- the share of its pairs of neighbouring tokens that the other text has
- the share of its neighbouring tokens whose best matches are in the same order
- the logarithm of the number of its tokens

A linear map of the standardised figures and of their squares gives scores, which are added to the head's.
The design and measurements are in docs/design/0024-pairs.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain

import numpy as np
import torch
from hmi_kernels.text.pairs import EACH, align
from numpy.typing import NDArray
from torch import Tensor, nn

from hmi.model.batching import Encoded

FIGURES = 2 * EACH
"""The number of a pair's figures: those of its first text, then those of its second."""
MOST = 4.0
"""Standardised figures are cut at this, so that a pair unlike all training rows gets no wild scores."""
LEAST_SCALE = 0.02
"""The least standard deviation that figures are divided by."""
COMMON = 1_000
"""Tokens with smaller ids are as common as possible. In the vocabularies of BERT's tokenizers these are
punctuation and single characters."""
LEAST_WEIGHT = 0.05
"""The weight of the commonest tokens."""


class Alignment(nn.Module):
    """Scores [pairs, labels] from figures [pairs, FIGURES], initially zero.

    mean, scale [FIGURES]: the figures are standardised with these. They are those of the training rows.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, labels: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(FIGURES))
        self.register_buffer("scale", torch.ones(FIGURES))
        self.weight = nn.Parameter(torch.zeros(labels, 2 * FIGURES))

    def standardise(self, figures: Tensor) -> None:
        """Take mean and scale from the training rows' figures [rows, FIGURES]."""
        self.mean = figures.mean(0)
        self.scale = figures.std(0, correction=0).clamp(min=LEAST_SCALE)

    def forward(self, figures: Tensor) -> Tensor:
        """figures [pairs, FIGURES] -> [pairs, labels]. A pair's scores are the same bits in every batch."""
        x = ((figures - self.mean) / self.scale).clamp(-MOST, MOST)
        both = torch.cat([x, x * x - 1], dim=-1)
        # A product of matrices would sum in another order for other numbers of pairs.
        return (both[:, None, :] * self.weight).sum(-1)


def figures_of(rows: Tensor, windows: Sequence[Encoded]) -> Tensor:
    """The figures fp32 [windows, FIGURES] of pairs of texts.

    rows fp32 [tokens, dim]: the windows' rows that enter the upper layers, one window after another. The
    figures are 0 for a window in which one of the two texts has no token.
    """
    ids = np.array(list(chain.from_iterable(window.ids for window in windows)), np.int64)
    sides = np.array(list(chain.from_iterable(map(_sides, windows))), np.int8)
    offsets = np.array(list(accumulate(map(len, windows), initial=0)), np.int64)
    out = np.empty((len(windows), FIGURES), np.float32)
    align(ids, sides, rarities(ids), rows.contiguous().numpy(), offsets, out)
    return torch.from_numpy(out)


def rarities(ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """The weight of each token by its id: vocabularies list their tokens from common to rare."""
    return (np.log(np.maximum(ids, COMMON) / COMMON) + LEAST_WEIGHT).astype(np.float32)


def _sides(window: Encoded) -> list[int]:
    """The text that each token belongs to, 0 or 1; -1 for [CLS] and [SEP]."""
    pairs = zip(window.types, window.words, strict=True)
    return [-1 if word is None else kind for kind, word in pairs]
