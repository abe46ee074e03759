"""The exit rule, against loops over texts (design/0012)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hmi.stages.early_exit.rule import NEVER, exit_index, of_labels, of_sets, of_tags, of_values

UNIT = st.floats(0.0, 1.0)


def one_by_one(uncertainty: np.ndarray, thresholds: np.ndarray) -> list[int]:
    """The reference: walk from ramp to ramp."""
    found = []
    for text in uncertainty:
        at = 0
        while at < len(thresholds) and not text[at] < thresholds[at]:
            at += 1
        found.append(at)
    return found


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    ramps = draw(st.integers(0, 4))
    texts = draw(st.integers(0, 6))
    u = draw(arrays.arrays(np.float64, (texts, ramps), elements=UNIT))
    return u, draw(arrays.arrays(np.float64, ramps, elements=UNIT))


def test_a_threshold_of_0_never_lets_a_text_leave_even_at_confidence_1() -> None:
    sure = of_labels(np.array([[1000.0, 0.0, -1000.0], [0.0, -np.inf, -np.inf]]))
    assert sure.tolist() == [0.0, 0.0], "both have confidence 1"
    assert exit_index(sure[:, None], [0.0]).tolist() == [1, 1]
    assert exit_index(sure[:, None], [np.nextafter(0.0, 1.0)]).tolist() == [0, 0]


@settings(max_examples=50)
@given(cases())
def test_the_exit_index_equals_a_walk_from_ramp_to_ramp(case: tuple[np.ndarray, np.ndarray]) -> None:
    assert exit_index(*case).tolist() == one_by_one(*case)


@settings(max_examples=50)
@given(cases(), st.data())
def test_the_exit_index_is_monotone_in_each_threshold(
    case: tuple[np.ndarray, np.ndarray], data: st.DataObject
) -> None:
    u, low = case
    high = np.maximum(low, data.draw(arrays.arrays(np.float64, len(low), elements=UNIT)))
    assert (exit_index(u, high) <= exit_index(u, low)).all()


def test_ramp_0_is_not_none_and_the_end_is_a_number_of_its_own() -> None:
    u = np.array([[0.1, 0.1], [0.9, 0.1], [0.9, 0.9]])
    index = exit_index(u, [0.5, 0.5])
    assert index.tolist() == [0, 1, 2]
    assert (index < 2).tolist() == [True, True, False], "who left; `index > 0` would lose ramp 0"


def test_the_comparison_is_strict() -> None:
    u = np.array([[0.2], [np.nextafter(0.2, 0.0)]])
    assert exit_index(u, [0.2]).tolist() == [1, 0]
    assert exit_index([[NEVER]], [1.0]).tolist() == [1]


@settings(max_examples=50)
@given(arrays.arrays(np.float64, (3, 4), elements=st.floats(-30, 30)))
def test_the_uncertainty_is_1_minus_max_softmax(logits: np.ndarray) -> None:
    softmax = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert np.allclose(of_labels(logits), 1 - softmax.max(1), atol=1e-12)
    assert (of_labels(logits) >= 0).all()


def test_the_uncertainty_keeps_its_digits_near_confidence_1() -> None:
    assert of_labels([[100.0, 0.0]])[0] == pytest.approx(np.exp(-100), rel=1e-9)
    assert of_labels([[0.0, 0.0]])[0] == 0.5


def test_labels_of_other_tenants_models_count_as_absent() -> None:
    padded = np.array([[1.0, 2.0, -np.inf, -np.inf]])
    assert of_labels(padded)[0] == pytest.approx(of_labels(padded[:, :2])[0], abs=1e-15)


@pytest.mark.parametrize("bad", [[np.nan, 1.0], [np.inf, 1.0], [-np.inf, -np.inf]])
def test_outputs_that_are_no_numbers_never_leave(bad: list[float]) -> None:
    assert exit_index(of_labels([bad])[:, None], [1.0]).tolist() == [1]


@settings(max_examples=50)
@given(arrays.arrays(np.float64, (4, 3), elements=st.floats(-20, 20)), st.floats(0.05, 0.95))
def test_a_set_is_as_uncertain_as_its_least_certain_decision(logits: np.ndarray, threshold: float) -> None:
    cut = np.log(threshold / (1 - threshold))
    expected = [max(1 / (1 + np.exp(abs(z - cut))) for z in row) for row in logits]
    assert np.allclose(of_sets(logits, threshold), expected, atol=1e-12)


def test_a_set_with_threshold_a_half_has_the_uncertainty_of_two_labels() -> None:
    logits = np.array([[3.0], [-1.0], [0.0]])
    two = np.concatenate([logits, np.zeros_like(logits)], 1)
    assert np.allclose(of_sets(logits), of_labels(two), atol=1e-15)


def test_values_leave_by_the_error_that_their_ramp_expects() -> None:
    u = of_values([0.0, 0.1, 1.0, 1e9], tolerance=0.5)
    assert u.tolist() == pytest.approx([0.0, np.exp(-5), np.exp(-0.5), 1.0], abs=1e-9)
    draws = np.random.default_rng(0).laplace(scale=0.4, size=200_000)
    assert of_values([0.4], 0.5)[0] == pytest.approx((np.abs(draws) > 0.5).mean(), abs=0.005)


@settings(max_examples=50)
@given(st.lists(st.lists(UNIT, max_size=4), max_size=5))
def test_tagged_texts_leave_by_their_least_certain_token(texts: list[list[float]]) -> None:
    offsets = [0, *np.cumsum([len(text) for text in texts], dtype=int).tolist()]
    flat = [u for text in texts for u in text]
    alone = [max(text, default=NEVER) for text in texts]
    assert of_tags(flat, offsets).tolist() == alone
    assert alone == [of_tags(flat[a:b], [0, b - a])[0] for a, b in pairwise(offsets)], "alone equals batched"


@pytest.mark.parametrize("bad", [[-0.1], [1.1], [np.nan], [[0.5]]])
def test_thresholds_out_of_range_are_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="thresholds"):
        exit_index(np.zeros((1, 1)), bad)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="2 thresholds"):
        exit_index(np.zeros((1, 1)), [0.1, 0.1])
    with pytest.raises(ValueError, match="threshold"):
        of_sets([[0.0]], 1.0)
    with pytest.raises(ValueError, match="tolerance"):
        of_values([1.0], 0.0)
    with pytest.raises(ValueError, match="error"):
        of_values([-1.0], 1.0)
    with pytest.raises(ValueError, match="no labels"):
        of_labels(np.zeros((2, 0)))
