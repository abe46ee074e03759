"""The dispatcher: which texts the small level answers, and which go on to the large one.

Tabi, section 4.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from hmi.model.tenant.calibration import Floats, probabilities
from hmi.stages.draw import draw


@dataclass(frozen=True)
class Dispatcher:
    """The parameters of equation (4)."""

    cut_off: float
    """c, from 0 to 1: texts of this confidence or less always go on. 1 sends every text on."""
    slope: float
    """k, at least 0: how steeply the probability falls above the cut-off. Tabi gives no value."""

    def __post_init__(self) -> None:
        if not (0.0 <= self.cut_off <= 1.0 and self.slope >= 0.0):
            raise ValueError(
                f"dispatcher: cut-off {self.cut_off} must be 0 to 1, slope {self.slope} 0 or more"
            )


@dataclass(frozen=True)
class Expected:
    """The expected performance of a cascade on profiled texts, over the dispatcher's draws."""

    accuracy: float
    seconds: float
    """The mean for a text."""
    returned: float
    """The fraction of texts that the small level answers."""


def confidence(logits: ArrayLike, temperature: float = 1.0) -> Floats:
    """Equation (3): max softmax(logits / T), [texts, labels] -> [texts]."""
    out: Floats = probabilities(logits, temperature).max(-1)
    return out


def share_large(confidences: ArrayLike, dispatcher: Dispatcher) -> Floats:
    """Equation (4): the probability with which each text goes on.

    Above the cut-off c it is 1 / (1 + exp(k · ((con − c) / (1 − c) − 1/2))), else 1, as for NaN.
    """
    con, c = np.asarray(confidences, np.float64), dispatcher.cut_off
    if c >= 1.0:
        return np.ones_like(con)
    falling = expit(-dispatcher.slope * ((con - c) / (1.0 - c) - 0.5))
    out: Floats = np.where(con > c, falling, 1.0)
    return out


def goes_on(request: str, probability: float) -> bool:
    """Draw whether this request goes on, with the given probability. The same request gets the same answer. A
    probability of 1 is always true, 0 never.
    """
    return draw("cascade", request) < probability


def expected(
    probability: ArrayLike,
    small_right: ArrayLike,
    large_right: ArrayLike,
    small_s: ArrayLike,
    large_s: ArrayLike,
) -> Expected:
    """The closed form of a cascade's accuracy and latency, without drawing. All [texts].

    probability: of `share_large`. large_right: whether the answer of a text that goes on is right, the
    ensemble's if there is one. large_s: the seconds that going on adds; where the large level continues the
    small one's model, only those of the layers that have not run.
    """
    p = np.asarray(probability, np.float64)
    small, large = np.asarray(small_right, np.float64), np.asarray(large_right, np.float64)
    if not len(p):
        raise ValueError("probability: there are no profiled texts")
    return Expected(
        float((p * large + (1.0 - p) * small).mean()),
        float((np.asarray(small_s) + p * np.asarray(large_s)).mean()),
        float((1.0 - p).mean()),
    )


def latency_quantile(
    probability: ArrayLike, small_s: ArrayLike, large_s: ArrayLike, quantile: float
) -> float:
    """The least number of seconds within which at least the fraction `quantile` of texts is answered.

    Over the dispatcher's draws: each text counts as answered by the small level with 1 − probability.
    """
    p, small, large = (np.asarray(a, np.float64) for a in (probability, small_s, large_s))
    seconds, weights = np.concatenate([small, small + large]), np.concatenate([1.0 - p, p])
    order = np.argsort(seconds, kind="stable")
    reached: NDArray[np.float64] = np.cumsum(weights[order])
    # The slack takes up the rounding of the sum.
    at = int(np.searchsorted(reached, quantile * len(p) - 1e-9 * len(p)))
    return float(seconds[order[min(at, len(order) - 1)]])
