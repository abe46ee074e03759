"""Calibration: the temperature that makes a model's probabilities agree with how often it is right.

Scores divided by a temperature T keep their order. The loss (the mean negative logarithm of the probability
of the right answer) is convex in 1/T, so its derivative has one zero, which bisection finds. Fitting T itself
by gradient steps can end at a negative T or not at all. Loads no torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.05, 20.0
"""A fitted temperature is within these bounds. Without them, rows that are all right would give 0."""
STEPS = 80
"""Halvings of the range of 1/T: more than a float64 has digits."""
NEWTON_STEPS = 50
RIDGE = 1e-3
"""Keeps the curvature of a logistic regression from being singular."""
BINS = 10
"""Bins of a reliability plot."""


@dataclass(frozen=True)
class Bin:
    """The answers whose probability falls into one bin of a reliability plot."""

    rows: int
    confidence: float
    """The mean probability."""
    right: float
    """The fraction of right answers."""


def probabilities(logits: ArrayLike, temperature: float = 1.0) -> Floats:
    """softmax(logits / T) over the last axis, Tabi's equation (3) before the maximum. −inf is no label."""
    if not temperature > 0.0:
        raise ValueError(f"temperature: {temperature} is not above 0")
    z = np.asarray(logits, np.float64) / temperature
    weights = np.exp(z - z.max(-1, keepdims=True))
    out: Floats = weights / weights.sum(-1, keepdims=True)
    return out


def loss(logits: ArrayLike, gold: ArrayLike, temperature: float = 1.0) -> float:
    """The mean negative log-probability of the right labels. [rows, labels], int [rows]. 0 without rows."""
    z, right = _checked(logits, gold)
    return _loss(z / temperature, right)


def fit_labels(logits: ArrayLike, gold: ArrayLike) -> float:
    """The temperature with the least `loss`, within the bounds. 1 without rows, or if no other is better.

    logits [rows, labels], gold int [rows]. Raises ValueError for shapes that do not fit, labels out of range,
    logits that are no numbers, and a right label whose logit is −inf.
    """
    z, right = _checked(logits, gold)
    if not len(z):
        return 1.0
    coldest, warmest = 1.0 / MIN_TEMPERATURE, 1.0 / MAX_TEMPERATURE
    low, high = warmest, coldest
    if _slope(z, right, low) >= 0.0:
        high = low
    elif _slope(z, right, high) <= 0.0:
        low = high
    for _ in range(STEPS):
        middle = (low + high) / 2
        if _slope(z, right, middle) < 0.0:
            low = middle
        else:
            high = middle
    found = 2.0 / (low + high)
    return found if _loss(z / found, right) < _loss(z, right) else 1.0


def fit_odds(odds: ArrayLike, right: ArrayLike) -> tuple[float, float] | None:
    """Slope and offset of the logistic regression of `right` on log odds (Platt's scaling).

    odds [answers], right bool [answers]. The targets are drawn in from 0 and 1 as Platt did, so the fit
    always exists. None if higher odds do not make an answer likelier to be right: that would reorder answers.
    """
    x, r = np.asarray(odds, np.float64), np.asarray(right, np.bool_)
    good, bad = int(r.sum()), int((~r).sum())
    target = np.where(r, (good + 1.0) / (good + 2.0), 1.0 / (bad + 2.0))
    design, fitted = np.stack([x, np.ones_like(x)], axis=1), np.zeros(2)
    for _ in range(NEWTON_STEPS):
        p = 1.0 / (1.0 + np.exp(-(design @ fitted)))
        curvature = (design * (p * (1.0 - p))[:, None]).T @ design + RIDGE * np.eye(2)
        fitted = fitted + np.linalg.solve(curvature, design.T @ (target - p) - RIDGE * fitted)
    slope, offset = fitted.tolist()
    return (slope, offset) if np.isfinite(fitted).all() and slope > 0.0 else None


def reliability(confidence: ArrayLike, right: ArrayLike, bins: int = BINS) -> list[Bin]:
    """The bins, of equal widths, that are not empty: probabilities in [0, 1], and whether each was right."""
    c, r = np.asarray(confidence, np.float64), np.asarray(right, np.float64)
    which = np.minimum((c * bins).astype(np.int64), bins - 1)
    found = (which == i for i in range(bins))
    return [Bin(int(at.sum()), float(c[at].mean()), float(r[at].mean())) for at in found if at.any()]


def calibration_error(confidence: ArrayLike, right: ArrayLike, bins: int = BINS) -> float:
    """The expected calibration error: the mean distance of confidence and right answers, over the bins."""
    found = reliability(confidence, right, bins)
    return sum(b.rows * abs(b.confidence - b.right) for b in found) / max(1, sum(b.rows for b in found))


def _loss(z: Floats, right: NDArray[np.int64]) -> float:
    if not len(z):
        return 0.0
    top = z.max(-1)
    of_all = top + np.log(np.exp(z - top[:, None]).sum(-1))
    return float((of_all - z[np.arange(len(z)), right]).mean())


def _slope(z: Floats, right: NDArray[np.int64], inverse: float) -> float:
    """The derivative of the loss by 1/T: the mean of the expected logit less the right one."""
    scaled = z * inverse
    weights = np.exp(scaled - scaled.max(-1, keepdims=True))
    expected = (weights * np.where(np.isneginf(z), 0.0, z)).sum(-1) / weights.sum(-1)
    return float((expected - z[np.arange(len(z)), right]).mean())


def _checked(logits: ArrayLike, gold: ArrayLike) -> tuple[Floats, NDArray[np.int64]]:
    z, right = np.asarray(logits, np.float64), np.asarray(gold, np.int64)
    if z.ndim != 2 or right.shape != z.shape[:1]:
        raise ValueError(f"gold: shape {right.shape}, but the logits have {z.shape}")
    if len(right) and not (right.min() >= 0 and right.max() < z.shape[1]):
        raise ValueError(f"gold: labels must be from 0 to {z.shape[1] - 1}")
    if np.isnan(z).any() or np.isposinf(z).any() or not np.isfinite(z[np.arange(len(z)), right]).all():
        raise ValueError("logits: NaN, infinity, or −inf for a right label: the model is damaged")
    return z, right
