"""A model's record of its own texts: means, similarities, the threshold at a share; and Platt's scaling."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmi.model.calibration import calibration_error, fit_odds
from hmi.model.entities import calibrated_score, log_odds
from hmi.model.known import at_shares, class_means, mean_rows, similarities
from hmi.model.shares import SHARES, threshold_of
from hmi.training.calibrating import calibrated_entities


def test_vectors_are_means_of_each_windows_rows() -> None:
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    found = mean_rows(rows, [0, 1, 4, 6])
    np.testing.assert_allclose(found, [rows[0], rows[1:4].mean(0), rows[4:6].mean(0)])


def test_the_nearest_mean_counts() -> None:
    vectors = np.array([[2, 0], [4, 0], [0, 3]], np.float32)
    means = class_means(vectors, ["x", "x", "y"])
    np.testing.assert_allclose(means, [[1, 0], [0, 1]])
    asked = np.array([[5, 0], [1, 1], [-1, 0], [0, 0]], np.float32)
    np.testing.assert_allclose(similarities(asked, means), [1, 0.5**0.5, 0, 0], atol=1e-6)


@given(st.lists(st.floats(-1, 1, width=32), min_size=40, max_size=80), st.floats(0.5, 0.999))
def test_the_threshold_is_what_the_share_reaches(own: list[float], share: float) -> None:
    found = at_shares(np.array(own, np.float32))
    assert list(found) == sorted(found)
    limit = threshold_of(found, share)
    assert limit == pytest.approx(float(np.interp(share, SHARES[::-1], found[::-1])), abs=1e-9)


def test_no_threshold_without_figures_or_share() -> None:
    assert threshold_of((), 0.97) is None
    assert threshold_of(tuple(SHARES), None) is None


def test_entities_scores_are_calibrated_for_themselves() -> None:
    """The scores of 2,000 entities say much more than they should."""
    rng = np.random.default_rng(3)
    odds = rng.normal(3.0, 1.5, 2000)
    right = rng.random(2000) < 1 / (1 + np.exp(-(0.5 * odds - 1.0)))
    fitted, told = calibrated_entities(odds, right, np.arange(2000))
    assert fitted == pytest.approx((0.5, -1.0), abs=0.15)
    assert told["entities"]["ece_calibrated"] < 0.05 < told["entities"]["ece"]
    assert fitted is not None
    sure = [calibrated_score(1 / (1 + np.exp(-x)), fitted) for x in odds]
    assert calibration_error(sure, right) < 0.03


def test_scores_that_say_nothing_are_left_alone() -> None:
    assert fit_odds([3.0, 2.0, -1.0], [False, False, True]) is None
    assert calibrated_entities(np.zeros(3), np.ones(3, np.bool_), np.arange(3)) == (None, {})
    slope, _ = fit_odds([1.0, 2.0, 3.0, -3.0], [True, True, True, False]) or (0.0, 0.0)
    assert slope > 0
    assert np.isfinite([log_odds(0.0), log_odds(1.0)]).all()
