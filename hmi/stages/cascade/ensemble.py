"""The ensemble of both levels' answers to a text that went on (Tabi, section 4.3)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from hmi.model.tenant.calibration import Floats, probabilities


def combined(small: ArrayLike, large: ArrayLike, weight: float) -> Floats:
    """Equation (6): weight · large + (1 − weight) · small, of calibrated probabilities or of values.

    Both [..., labels] with the labels in the same order. A weight of 1 gives the large level's to the bit, 0
    the small one's.
    """
    first, second = np.asarray(small, np.float64), np.asarray(large, np.float64)
    if first.shape != second.shape:
        raise ValueError(f"small and large: the shapes {first.shape} and {second.shape} differ")
    if not 0.0 <= weight <= 1.0:
        raise ValueError(f"weight: {weight} is not from 0 to 1")
    if weight in (0.0, 1.0):
        return (second if weight else first).copy()
    return weight * second + (1.0 - weight) * first


def weight_of(small_right: ArrayLike, large_right: ArrayLike, probability: ArrayLike) -> float:
    """The weight of the large level: in proportion to the accuracies on the texts that go on.

    All [texts]; `probability` is that of going on (`share_large`), which weighs each text. 1/2 if no text
    goes on, or if both levels are always wrong.
    """
    p = np.asarray(probability, np.float64)
    small, large = (float((p * np.asarray(right, np.float64)).sum()) for right in (small_right, large_right))
    return large / (small + large) if small + large > 0.0 else 0.5


def calibrated(given: ArrayLike, temperature: float) -> Floats:
    """The probabilities softmax(z / T), from those at T = 1: [..., labels] -> [..., labels]. A 0 stays 0.

    A model's logits z are the logarithms of its probabilities but for a constant, which a softmax ignores.
    """
    with np.errstate(divide="ignore"):
        return probabilities(np.log(np.asarray(given, np.float64)), temperature)
