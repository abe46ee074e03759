"""How unsure an answer is, in [0, 1], for each form of answer: what the exit rule compares with thresholds.

For one label it is 1 − max softmax (Apparate, section 2.2, with the measure of its public code). Functions
over arrays; loads no torch. `hmi.stages.early_exit.rule` says when a text leaves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from hmi.model.tenant.calibration import Floats

NEVER = 1.0
"""The uncertainty of a text that may not leave early: no threshold is above it."""
VALUE_TOLERANCE = 0.25
"""Two values agree if they differ by at most this many standard deviations of the training rows' values."""


def of_labels(logits: ArrayLike) -> Floats:
    """1 − max softmax of the last axis: [..., labels] -> [...].

    Computed as the sum of the other probabilities, which keeps its digits where the largest is nearly 1.
    Labels that another tenant's model has and this one has not are −inf.
    """
    z = np.asarray(logits, np.float64)
    if z.shape[-1] == 0:
        raise ValueError("logits: there are no labels")
    with np.errstate(invalid="ignore"):  # inf − inf is NaN, which never leaves
        weights = np.exp(z - z.max(-1, keepdims=True), order="C")
    total = weights.sum(-1)
    flat = weights.reshape(-1, z.shape[-1])
    flat[np.arange(len(flat)), flat.argmax(-1)] = 0.0
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
    """The absolute error that a value's ramp expects of itself, from its second output: softplus(raw) > 0.

    In units of the standard deviation of the training rows' values, as the first output is, and as
    VALUE_TOLERANCE.
    """
    z = np.asarray(raw, np.float64)
    out: Floats = np.maximum(z, 0.0) + np.log1p(np.exp(-np.abs(z)))
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
