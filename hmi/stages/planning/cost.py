"""The cost of a batch: T(x) = t0 + h·texts + Σ_l [a·rows_l + b·squares_l] + c·modules + stall(x), fitted.

rows_l is the number of rows that enter layer l. squares_l is the sum of the squares of the texts' numbers of
rows there, since rows are packed and a text attends to its own alone. So a batch costs the sum of its texts'
prices and its fixed costs. stall(x) has a part for each batch and one for each token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.optimize import nnls

QUANTILE = 0.9
"""The quantile of measured by predicted seconds that deadlines are checked with."""
DECAY = 0.95
"""The weight of earlier batches decays by this factor with each new batch of the same setting."""
TRUST = 4.0
"""The number of batches' worth of confidence in the profile when measuring begins."""
MAX_OVERRUN = 4.0
"""A batch counts as at most this many times its predicted time: beyond that, something else held it up."""


@dataclass(frozen=True)
class Sample:
    """One measured batch."""

    setting: str
    rows: Sequence[float]
    """[layers]: the fraction of the rows that enter each layer."""
    windows: Sequence[int]
    """[texts]: the tokens of each."""
    modules: int
    seconds: float


@dataclass(frozen=True)
class Cost:
    """A fitted cost. The coefficients are seconds, none of them negative."""

    batch: float
    text: float
    row: float
    square: float
    module: float
    stalls: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Further seconds of a batch and of a token under each setting, by its name."""
    margin: float = 1.0
    """The QUANTILE of measured by predicted seconds, 1 at least."""

    def text_s(self, tokens: int, rows: Sequence[float], setting: str = "off") -> float:
        """Seconds that a window adds to a batch, its module's apart."""
        total, squares = sum(rows), sum(share * share for share in rows)
        stall = self.stalls.get(setting, (0.0, 0.0))[1]
        return self.text + tokens * (stall + self.row * total + self.square * tokens * squares)

    def fixed_s(self, modules: int, setting: str = "off") -> float:
        """Seconds of a batch apart from those of its windows."""
        return self.batch + self.module * modules + self.stalls.get(setting, (0.0, 0.0))[0]

    def seconds(self, sample: Sample) -> float:
        """Predicted seconds of a batch. The measured ones are not looked at."""
        texts = sum(self.text_s(tokens, sample.rows, sample.setting) for tokens in sample.windows)
        return self.fixed_s(sample.modules, sample.setting) + texts


def fit(samples: Sequence[Sample]) -> Cost:
    """Fit a cost to measured batches by non-negative least squares of the relative error.

    A setting without a sample has no stall. Raises ValueError without samples.
    """
    if not samples:
        raise ValueError("a cost cannot be fitted to no batches: measure some")
    settings = sorted({sample.setting for sample in samples} - {"off"})
    columns = np.array([_features(sample, settings) for sample in samples])
    seconds = np.array([sample.seconds for sample in samples])
    scales = np.abs(columns).max(axis=0)
    scales[scales == 0] = 1.0  # or a column without samples would have no scale
    found, _ = nnls(columns / scales / seconds[:, None], np.ones(len(samples)))
    found = [float(each) for each in found / scales]
    batch, text, row, square, module, *rest = found
    stalls = dict(zip(settings, zip(rest[::2], rest[1::2], strict=True), strict=True))
    cost = Cost(batch, text, row, square, module, stalls)
    ratios = seconds / np.array([cost.seconds(sample) for sample in samples])
    return replace(cost, margin=max(1.0, float(np.quantile(ratios, QUANTILE))))


def _features(sample: Sample, settings: Sequence[str]) -> list[float]:
    windows = np.array(sample.windows, float)
    rows, squares = sum(sample.rows), sum(share * share for share in sample.rows)
    tokens = float(windows.sum())
    common = [1.0, len(windows), tokens * rows, float(np.square(windows).sum()) * squares, sample.modules]
    stalls = [each for name in settings for on in (name == sample.setting,) for each in (on, on * tokens)]
    return [*map(float, common), *map(float, stalls)]


class Correction:
    """The ratio of measured to predicted seconds under one setting: a decaying mean, weighted by prediction.

    It begins at 1 with TRUST batches' weight, so the first batches move it little.
    """

    def __init__(self) -> None:
        self._measured = self._predicted = 0.0
        """Decaying sums of seconds, in units of the mean batch's."""
        self._spread = 0.0
        """A decaying sum of the squares of the logarithms of single batches' ratios to the mean one."""
        self._weight = 0.0
        self.batches = 0

    @property
    def ratio(self) -> float:
        return (TRUST + self._measured) / (TRUST + self._predicted)

    @property
    def logarithm(self) -> float:
        """The logarithm of the ratio of measured batches alone. Only after `ran`."""
        return math.log(self._measured / self._predicted)

    @property
    def error(self) -> float:
        """The standard error of `logarithm`; inf before two batches."""
        if self.batches < 2:
            return math.inf
        effective = min(self.batches, (1 + DECAY) / (1 - DECAY))
        return math.sqrt(self._spread / self._weight / (effective - 1))

    def ran(self, predicted_s: float, seconds: float) -> None:
        """Learn from a batch. Both are positive; a batch that took far longer than predicted counts less."""
        expected = self._measured / self._predicted if self.batches else self.ratio
        seconds = min(seconds, MAX_OVERRUN * expected * predicted_s)
        ratio = seconds / predicted_s
        self._measured = DECAY * self._measured + ratio
        self._predicted = DECAY * self._predicted + 1.0
        self._spread = DECAY * self._spread + math.log(ratio * self._predicted / self._measured) ** 2
        self._weight = DECAY * self._weight + 1.0
        self.batches += 1
