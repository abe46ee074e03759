"""Threshold tuning against grid search and brute force (design/0012)."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hmi.stages.early_exit.thresholds import Tuned, Window, allowed_errors, best, climb, evaluate, tune


def outcome(window: Window, thresholds: tuple[float, ...]) -> tuple[float, int]:
    """The reference: the mean seconds saved and the errors, text by text."""
    saved, errors = 0.0, 0
    for u, agrees in zip(window.uncertainty, window.agrees, strict=True):
        for ramp, threshold in enumerate(thresholds):
            if u[ramp] < threshold:
                saved += window.saved_s[ramp]
                errors += not agrees[ramp]
                break
    return saved / max(1, len(window.uncertainty)), errors


def grid(window: Window, allowed: int, values: list[list[float]]) -> tuple[Tuned, int]:
    """The reference: every combination of thresholds, and how many there are."""
    found, count = Tuned(np.zeros(len(values)), 0.0, 0, 0), 0
    for thresholds in product(*values):
        count += 1
        saved, errors = outcome(window, thresholds)
        if errors <= allowed and saved > found.saved_s:
            found = Tuned(np.array(thresholds), saved, errors, 0)
    return found, count


def recorded(seed: int, texts: int = 200, ramps: int = 2) -> Window:
    """A window as ramps record it: later ramps are surer, and sure ones seldom err."""
    rng = np.random.default_rng(seed)
    hard = rng.beta(0.6, 1.4, (texts, 1))
    known = np.linspace(0.45, 0.9, ramps)
    u = np.clip(hard ** (0.5 + known) + rng.normal(0, 0.08, (texts, ramps)), 0, 1)
    return Window(u, rng.random((texts, ramps)) > 0.9 * u**2, np.linspace(4e-3, 1e-3, ramps))


@st.composite
def windows(draw: st.DrawFn, texts: int = 7, ramps: int = 3) -> Window:
    shape = (draw(st.integers(0, texts)), draw(st.integers(1, ramps)))
    u = draw(arrays.arrays(np.float64, shape, elements=st.sampled_from([0, 0.1, 0.2, 0.3, 0.5, 0.7, 1])))
    saved = sorted(draw(st.lists(st.floats(0, 1), min_size=shape[1], max_size=shape[1])), reverse=True)
    return Window(u, draw(arrays.arrays(np.bool_, shape)), np.array(saved))


@settings(max_examples=60)
@given(windows(), st.data())
def test_evaluation_equals_a_walk_over_texts(window: Window, data: st.DataObject) -> None:
    ramps = window.uncertainty.shape[1]
    settings = data.draw(arrays.arrays(np.float64, (3, ramps), elements=st.floats(0, 1)))
    saved, errors = evaluate(window, settings)
    for i, thresholds in enumerate(settings):
        expected = outcome(window, tuple(thresholds))
        assert (saved[i], errors[i]) == (pytest.approx(expected[0]), expected[1])


@settings(max_examples=60)
@given(windows(), st.data())
def test_saved_time_is_monotone_in_each_threshold(window: Window, data: st.DataObject) -> None:
    ramps = window.uncertainty.shape[1]
    low, more = data.draw(arrays.arrays(np.float64, (2, ramps), elements=st.floats(0, 1)))
    saved, _ = evaluate(window, np.stack([low, np.maximum(low, more)]))
    assert saved[1] >= saved[0] - 1e-12


def test_agreement_is_not_monotone_in_thresholds() -> None:
    # The text would leave wrongly at the second ramp; with a higher first threshold it leaves rightly there.
    window = Window(np.array([[0.3, 0.1]]), np.array([[True, False]]), np.array([2.0, 1.0]))
    _, errors = evaluate(window, [[0.2, 0.2], [0.4, 0.2]])
    assert errors.tolist() == [1, 0]
    for search in (best, climb, tune):
        assert search(window, 0).errors == 0
        assert search(window, 0).saved_s == 2.0, "what assumes a monotone agreement stops at 0"


@settings(deadline=None, max_examples=60)
@given(windows(), st.integers(0, 3))
def test_the_exact_search_equals_brute_force_over_all_thresholds(window: Window, allowed: int) -> None:
    every = [[*np.unique(u), 1.0] for u in window.uncertainty.T]
    expected, _ = grid(window, allowed, [sorted({0.0, *values}) for values in every])
    found = best(window, allowed)
    assert found.saved_s == pytest.approx(expected.saved_s)
    saved, errors = outcome(window, tuple(found.thresholds))
    assert (found.saved_s, found.errors) == (pytest.approx(saved), errors)
    assert errors <= allowed


@settings(deadline=None, max_examples=60)
@given(windows(texts=12), st.integers(0, 6), st.integers(1, 4))
def test_every_search_keeps_the_constraint_and_tells_the_truth(
    window: Window, allowed: int, unit: int
) -> None:
    for found in (climb(window, allowed), best(window, allowed, unit), tune(window, allowed)):
        saved, errors = outcome(window, tuple(found.thresholds))
        assert (found.saved_s, found.errors) == (pytest.approx(saved), errors)
        assert errors <= allowed


@pytest.mark.parametrize("seed", range(3))
def test_tuning_is_within_3_8_percent_of_the_grid_and_evaluates_100_times_less(seed: int) -> None:
    window, allowed = recorded(seed, texts=100), 1
    expected, count = grid(window, allowed, [[i / 50 for i in range(51)]] * 2)
    found, climbed = tune(window, allowed), climb(window, allowed)
    assert expected.saved_s > 0
    assert found.saved_s >= 0.962 * expected.saved_s
    assert climbed.saved_s >= 0.962 * expected.saved_s
    assert 100 * found.evaluations <= count
    assert found.errors <= allowed


@pytest.mark.parametrize("seed", range(20))
def test_tuning_that_deals_by_the_handful_stays_within_3_8_percent_of_the_exact_search(seed: int) -> None:
    window, allowed = recorded(100 + seed, texts=400, ramps=4), 12
    exact, found = best(window, allowed), tune(window, allowed)
    assert exact.evaluations > 400 > found.evaluations
    assert found.saved_s >= 0.962 * exact.saved_s


def test_thresholds_stay_between_the_texts_they_were_tuned_on() -> None:
    u = np.array([[0.1], [0.2], [0.4], [0.6]])
    window = Window(u, np.array([[True], [True], [False], [True]]), np.array([1.0]))
    assert best(window, 0).thresholds.tolist() == pytest.approx([0.3]), "halfway to the error"
    assert best(window, 1).thresholds.tolist() == [np.nextafter(0.6, 1)], "not beyond what was recorded"
    assert best(window, 0).saved_s == 0.5


def test_without_records_nothing_leaves() -> None:
    empty = Window(np.zeros((0, 2)), np.zeros((0, 2), bool), np.array([2.0, 1.0]))
    assert tune(empty, 0).thresholds.tolist() == [0, 0]


def test_16_texts_at_1_percent_allow_no_error() -> None:
    assert [allowed_errors(n, 0.01) for n in (0, 16, 99, 100, 300)] == [0, 0, 0, 1, 3]
    with pytest.raises(ValueError, match="loss"):
        allowed_errors(10, 1.5)


@pytest.mark.parametrize(
    ("agrees", "saved"), [(np.zeros((2, 1), bool), [1.0, 1.0]), (np.zeros((2, 2), bool), [1.0, 2.0])]
)
def test_windows_that_contradict_themselves_are_refused(agrees: np.ndarray, saved: list[float]) -> None:
    with pytest.raises(ValueError, match=r"window|saved_s"):
        Window(np.zeros((2, 2)), agrees, np.array(saved))
