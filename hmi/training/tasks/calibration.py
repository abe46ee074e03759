"""The calibration of a trained model on its held-out rows: the temperature, and the error with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmi.model.tenant.calibration import Floats, calibration_error, fit_labels, fit_odds, probabilities

ENOUGH_ENTITIES = 20
"""Entities' scores are calibrated apart from those of words if there are at least this many entities."""


@dataclass(frozen=True)
class ModelDecisions:
    """The decisions of a model on rows, of which each gives one probability: a text's label, whether a text
    has a label, a word's tag."""

    logits: Floats
    """[decisions, choices]"""
    gold: NDArray[np.int64]
    """[decisions]: the right choice; -1 if the model lacks it."""
    shown: NDArray[np.int64]
    """[decisions]: the choice whose probability the answer gives."""
    rows: NDArray[np.int64]
    """[decisions]: the row of each."""

    def fit(self, which: NDArray[np.bool_]) -> float:
        """The temperature that suits these decisions best."""
        known = which & (self.gold >= 0)
        return fit_labels(self.logits[known], self.gold[known])

    def confidence(self, temperature: float = 1.0) -> Floats:
        """[decisions]: the probability that each answer gives, at a temperature."""
        out: Floats = probabilities(self.logits, temperature)[np.arange(len(self.shown)), self.shown]
        return out


def calibrated_entities(
    odds: Floats, right: NDArray[np.bool_], rows: NDArray[np.int64]
) -> tuple[tuple[float, float] | None, dict[str, Any]]:
    """The calibration of entities' scores (`fit_odds`), and figures for the report.

    odds, right, rows: of each entity that the model found in held-out rows, the log odds of its score,
    whether type and place are right, and its row. None, without figures, with fewer than ENOUGH_ENTITIES of
    them. The error is that of each half of the rows with the fit of the other half.
    """
    found = fit_odds(odds, right) if len(odds) >= ENOUGH_ENTITIES else None
    if found is None:
        return None, {}
    plain, odd = 1.0 / (1.0 + np.exp(-odds)), rows % 2 == 1
    sure = plain.copy()
    for half in (odd, ~odd):
        slope, offset = fit_odds(odds[~half], right[~half]) or (1.0, 0.0)
        sure[half] = 1.0 / (1.0 + np.exp(-(slope * odds[half] + offset)))
    errors = {"ece": calibration_error(plain, right), "ece_calibrated": calibration_error(sure, right)}
    return found, {"entities": {"found": len(odds), **{name: round(x, 4) for name, x in errors.items()}}}


def calibrated(made: ModelDecisions | None, rows: int, enough: int) -> tuple[float | None, dict[str, Any]]:
    """The temperature of a model, and figures for its report: the calibration error with the temperature.

    It is None, without figures, if the task gives no probabilities or there are fewer than `enough` rows. The
    error is that of each half of the rows under the temperature that the other half gives, so it is no error
    on the rows of its own fit.
    """
    if made is None or rows < enough or not len(made.shown):
        return None, {}
    found = made.fit(np.ones(len(made.shown), np.bool_))
    sure, odd = np.empty(len(made.shown)), made.rows % 2 == 1
    for half in (odd, ~odd):
        sure[half] = made.confidence(made.fit(~half))[half]
    return found, {
        "temperature": round(found, 4),
        "ece_calibrated": round(calibration_error(sure, made.gold == made.shown), 4),
    }
