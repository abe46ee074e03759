"""The exit rule: a text leaves at the first ramp that is less uncertain than the ramp's threshold.

The uncertainty is a number in [0, 1]. For one label it is 1 − max softmax (Apparate, section 2.2, with the
measure of its public code). The comparison is strict, so a threshold of 0 never lets a text leave. NaN is
less than nothing, so a text whose outputs are no numbers goes on to the last layer, where it is reported.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hmi.model.calibration import Floats

NEVER = 1.0
"""The uncertainty of a text that may not leave early: no threshold is above it."""


def of_labels(logits: ArrayLike) -> Floats:
    """1 − max softmax of the last axis: [..., labels] -> [...].

    Computed as the sum of the other probabilities, which keeps its digits where the largest is nearly 1.
    Labels that another tenant's model has and this one has not are −inf.
    """
    z = np.asarray(logits, np.float64)
    if z.shape[-1] == 0:
        raise ValueError("logits: there are no labels")
    with np.errstate(invalid="ignore"):  # inf − inf is NaN, which never leaves
        weights = np.exp(z - z.max(-1, keepdims=True))
    total = weights.sum(-1)
    np.put_along_axis(weights, z.argmax(-1, keepdims=True), 0.0, -1)
    others: Floats = weights.sum(-1) / total
    return others


def of_sets(logits: ArrayLike, threshold: float = 0.5) -> Floats:
    """The uncertainty of a set of labels: that of its least certain decision. [texts, labels] -> [texts].

    A label is given if its sigmoid reaches `threshold`. Its uncertainty is the sigmoid at minus the distance
    between its logit and the threshold's: 1/2 at the threshold, 1 − max(p, 1 − p) if the threshold is 1/2.
    The set agrees with the full model's only if every decision does, hence the maximum.
    """
    if not 0.0 < threshold < 1.0:
        raise ValueError(f"threshold: {threshold} is not between 0 and 1")
    distance = np.abs(np.asarray(logits, np.float64) - np.log(threshold / (1.0 - threshold)))
    closest = distance.min(-1)
    out: Floats = np.exp(-closest) / (1.0 + np.exp(-closest))
    return out


def of_values(error: ArrayLike, tolerance: float) -> Floats:
    """The uncertainty of a value: the probability that it is off by more than `tolerance`.

    [texts] -> [texts]. A value has no softmax, so its ramp has a second output: the absolute error that it
    expects, `error`, in the same units as `tolerance`. With errors distributed as Laplace's, the probability
    is exp(−tolerance / error). An error of 0 has uncertainty 0; a negative one is a ValueError.
    """
    e = np.asarray(error, np.float64)
    if not tolerance > 0.0:
        raise ValueError(f"tolerance: {tolerance} is not above 0")
    if (e < 0.0).any():
        raise ValueError("error: an expected absolute error cannot be negative")
    with np.errstate(divide="ignore"):
        out: Floats = np.exp(-tolerance / e)
    return out


def expected_error(raw: ArrayLike) -> Floats:
    """The absolute error that a regression's ramp expects of itself, from its second output: softplus.

    [texts] -> [texts], at least 0, in units of the value's spread, like the first output.
    """
    out: Floats = np.logaddexp(0.0, np.asarray(raw, np.float64))
    return out


def of_tags(uncertainty: ArrayLike, offsets: Sequence[int]) -> Floats:
    """The uncertainty of tagged texts: that of their least certain token.

    uncertainty [tokens]: of the tokens that are tagged (each word's first piece), text after text. offsets
    [texts + 1]: text i has the tokens offsets[i]:offsets[i + 1]. A text without tokens gets NEVER.
    """
    each = np.asarray(uncertainty, np.float64)
    at = np.asarray(offsets, np.int64)
    out = np.full(len(at) - 1, NEVER)
    some = np.flatnonzero(np.diff(at))
    if len(some):  # reduceat returns a neighbour's element for an empty range, so empty texts are left out
        out[some] = np.maximum.reduceat(each[: at[-1]], at[some])
    return out


def leaves(uncertainty: ArrayLike, threshold: float) -> NDArray[np.bool_]:
    """Return whether each text leaves at a ramp: if and only if its uncertainty is strictly below the
    threshold."""
    out: NDArray[np.bool_] = np.asarray(uncertainty, np.float64) < threshold
    return out


def exit_index(uncertainty: ArrayLike, thresholds: ArrayLike) -> NDArray[np.int64]:
    """The ramp at which each text leaves: [texts, ramps], thresholds [ramps] -> int64 [texts].

    Ramps count from 0. The number of ramps means that the text stays to the end, so a higher index is always
    later, and 0 is a ramp like any other. Raising a threshold never raises an index.
    """
    u, t = np.asarray(uncertainty, np.float64), checked(thresholds)
    if u.ndim != 2 or u.shape[1] != len(t):
        raise ValueError(f"uncertainty: shape {u.shape}, but there are {len(t)} thresholds")
    at_end = np.ones((len(u), 1), np.bool_)
    index: NDArray[np.int64] = np.concatenate([u < t, at_end], 1).argmax(1)
    return index


def checked(thresholds: ArrayLike) -> Floats:
    """Thresholds as float64 [ramps]. Raises ValueError if one is not in [0, 1]."""
    t = np.asarray(thresholds, np.float64)
    if t.ndim != 1 or not ((t >= 0.0) & (t <= 1.0)).all():
        raise ValueError(f"thresholds: {t.tolist()} must be a list of numbers from 0 to 1")
    return t
