"""Calibration against a dense grid of temperatures (design/0012)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hmi.model.tenant.calibration import (
    MAX_TEMPERATURE,
    MIN_TEMPERATURE,
    calibration_error,
    fit_labels,
    loss,
    probabilities,
    reliability,
)


def said(seed: int, scale: float, rows: int = 400, labels: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Logits whose softmax is right as often as it says once they are divided by `scale`."""
    rng = np.random.default_rng(seed)
    true = rng.normal(0, 2, (rows, labels))
    gold = np.array([rng.choice(labels, p=p) for p in probabilities(true)])
    return true * scale, gold


@st.composite
def rows(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    count, labels = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    logits = draw(arrays.arrays(np.float64, (count, labels), elements=st.floats(-8, 8, width=16)))
    return logits, draw(arrays.arrays(np.int64, count, elements=st.integers(0, labels - 1)))


@settings(max_examples=30, deadline=None)
@given(rows())
def test_the_fitted_temperature_equals_a_dense_grid(case: tuple[np.ndarray, np.ndarray]) -> None:
    grid = np.geomspace(MIN_TEMPERATURE, MAX_TEMPERATURE, 120)
    best = min(loss(*case, t) for t in grid)
    found = loss(*case, fit_labels(*case))
    assert found <= best + 1e-9
    assert found >= best - 5e-2, "nor can it be far below: the grid is dense"


@settings(max_examples=30, deadline=None)
@given(rows())
def test_the_loss_at_the_fitted_temperature_is_at_most_that_at_1(case: tuple[np.ndarray, np.ndarray]) -> None:
    temperature = fit_labels(*case)
    assert MIN_TEMPERATURE <= temperature <= MAX_TEMPERATURE
    assert loss(*case, temperature) <= loss(*case)


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
def test_the_temperature_of_overconfident_logits_is_found(scale: float) -> None:
    logits, gold = said(0, scale, rows=4000)
    assert fit_labels(logits, gold) == pytest.approx(scale, rel=0.1)


@settings(max_examples=50)
@given(
    arrays.arrays(np.float64, (3, 4), elements=st.floats(-30, 30, width=16)),
    st.floats(MIN_TEMPERATURE, MAX_TEMPERATURE),
)
def test_the_most_probable_label_does_not_depend_on_the_temperature(
    logits: np.ndarray, temperature: float
) -> None:
    divided = probabilities(logits, temperature)
    for row, p in zip(logits, divided, strict=True):
        assert p[row.argmax()] == p.max()


def test_temperatures_are_clamped() -> None:
    right = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert fit_labels(right, [0, 1]) == pytest.approx(MIN_TEMPERATURE)
    assert fit_labels(right, [1, 0]) == pytest.approx(MAX_TEMPERATURE)


def test_rows_that_say_nothing_leave_the_temperature_at_1() -> None:
    assert fit_labels(np.zeros((0, 3)), []) == 1.0
    assert fit_labels(np.zeros((5, 3)), [0, 1, 2, 0, 1]) == 1.0
    assert fit_labels(np.ones((5, 1)), [0] * 5) == 1.0
    assert loss(np.zeros((0, 3)), []) == 0.0


def test_labels_that_a_model_has_not_do_not_change_the_fit() -> None:
    logits, gold = said(1, 3.0)
    padded = np.concatenate([logits, np.full((len(gold), 2), -np.inf)], 1)
    assert fit_labels(padded, gold) == pytest.approx(fit_labels(logits, gold), rel=1e-9)


def slow_error(confidence: np.ndarray, right: np.ndarray, bins: int) -> float:
    total = 0.0
    for i in range(bins):
        low, high = i / bins, (i + 1) / bins
        inside = [j for j, c in enumerate(confidence) if low <= c < high or (c == 1.0 and i == bins - 1)]
        if inside:
            total += abs(sum(confidence[j] for j in inside) - sum(right[j] for j in inside))
    return total / max(1, len(confidence))


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 64), st.booleans()), max_size=20))
def test_the_calibration_error_equals_a_sum_over_bins(answers: list[tuple[int, bool]]) -> None:
    confidence, right = np.array([c / 64 for c, _ in answers]), np.array([r for _, r in answers], bool)
    assert calibration_error(confidence, right, 8) == pytest.approx(slow_error(confidence, right, 8))
    assert sum(b.rows for b in reliability(confidence, right, 8)) == len(answers)


def test_calibration_lowers_the_error() -> None:
    logits, gold = said(4, 4.0, rows=2000)
    half = len(gold) // 2
    temperature = fit_labels(logits[:half], gold[:half])
    errors = []
    for t in (1.0, temperature):
        p = probabilities(logits[half:], t)
        errors.append(calibration_error(p.max(1), p.argmax(1) == gold[half:]))
    assert errors[1] < 0.4 * errors[0]


@pytest.mark.parametrize(
    ("logits", "gold"),
    [
        (np.zeros((2, 3)), [0]),
        (np.zeros((2, 3)), [0, 3]),
        (np.zeros((2, 3)), [0, -1]),
        (np.array([[np.nan, 0.0]]), [1]),
        (np.array([[np.inf, 0.0]]), [1]),
        (np.array([[-np.inf, 0.0]]), [0]),
    ],
)
def test_bad_arguments_are_refused(logits: np.ndarray, gold: list[int]) -> None:
    with pytest.raises(ValueError, match=r"gold|logits"):
        fit_labels(logits, gold)


def test_a_temperature_must_be_above_0() -> None:
    with pytest.raises(ValueError, match="temperature"):
        probabilities([0.0], 0.0)
