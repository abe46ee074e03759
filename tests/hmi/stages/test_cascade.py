"""Tabi's equations (3), (4) and (6) and the offline profiling, against slow forms (design/0012)."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from hmi.core import Offer
from hmi.model.tenant.calibration import probabilities
from hmi.stages.cascade.dispatch import (
    Dispatcher,
    confidence,
    expected,
    goes_on,
    latency_quantile,
    share_large,
)
from hmi.stages.cascade.ensemble import calibrated, combined, weight_of
from hmi.stages.cascade.profiling import (
    CAREFUL,
    MAX_TAIL,
    TAIL,
    Profiled,
    candidate,
    candidates,
    ladder,
    offered,
    pruning_scale,
    select,
)
from hmi.stages.draw import draw

UNIT = st.floats(0, 1)
SOME = (2.0, 20.0)
"""Slopes."""


@settings(max_examples=50)
@given(st.lists(st.floats(-50, 50), min_size=1, max_size=5), st.floats(0.05, 20))
def test_equation_3_to_12_digits(logits: list[float], temperature: float) -> None:
    top = max(logits)
    total = math.fsum(math.exp((z - top) / temperature) for z in logits)
    assert confidence([logits], temperature)[0] == pytest.approx(1 / total, abs=1e-12)


@settings(max_examples=50)
@given(UNIT, st.floats(0, 0.99), st.floats(0, 60))
def test_equation_4_to_12_digits(con: float, c: float, k: float) -> None:
    slow = 1 / (1 + math.exp(k * ((con - c) / (1 - c) - 0.5))) if con > c else 1.0
    assert share_large([con], Dispatcher(c, k))[0] == pytest.approx(slow, abs=1e-12)


def test_equation_4_at_its_landmarks() -> None:
    c = 0.95
    p = share_large([np.nextafter(c, 1), (1 + c) / 2, 1.0, c, np.nan], Dispatcher(c, 10.0))
    assert p[:3] == pytest.approx([0.99331, 0.5, 0.00669], abs=5e-6)
    assert p[3:].tolist() == [1.0, 1.0]


def test_a_cut_off_of_1_re_routes_all() -> None:
    con = [0.0, 0.5, np.nextafter(1, 0), 1.0]
    for dispatcher in (Dispatcher(1.0, 0.0), Dispatcher(1.0, 50.0)):
        p = share_large(con, dispatcher)
        assert p.tolist() == [1.0] * 4
        assert all(goes_on(f"r{i}", float(share)) for i, share in enumerate(p))


def test_the_same_request_always_goes_the_same_way() -> None:
    # On every machine and in every version, so that a request can be repeated.
    assert [round(draw("cascade", f"r{i}"), 6) for i in range(3)] == [0.798419, 0.001281, 0.753506]
    assert all(goes_on(f"r{i}", 0.4) == goes_on(f"r{i}", 0.4) for i in range(50))
    assert not any(goes_on(f"r{i}", 0.0) for i in range(200))


def test_draws_are_uniform_and_independent_of_their_purpose() -> None:
    draws = np.array([[draw(purpose, f"r{i}") for purpose in ("cascade", "audit")] for i in range(20_000)])
    assert ((draws >= 0) & (draws < 1)).all()
    quarters = np.histogram2d(draws[:, 0], draws[:, 1], bins=4, range=[[0, 1], [0, 1]])[0]
    low, high = binom.interval(1 - 1e-6, len(draws), 1 / 16)
    assert ((quarters >= low) & (quarters <= high)).all()


@pytest.mark.parametrize("share", [0.01, 0.3, 0.97])
def test_the_observed_share_lies_inside_its_binomial_interval(share: float) -> None:
    observed = sum(goes_on(f"request {share} {i}", share) for i in range(20_000))
    low, high = binom.interval(1 - 1e-6, 20_000, share)
    assert low <= observed <= high


CASE = st.lists(st.tuples(UNIT, st.booleans(), st.booleans(), UNIT, UNIT), min_size=1, max_size=5)


@settings(max_examples=40)
@given(CASE)
def test_expected_accuracy_and_latency_equal_the_sum_over_all_draws(case: list[tuple[float, ...]]) -> None:
    accuracy = seconds = returned = 0.0
    for outcome in product((False, True), repeat=len(case)):
        chance = math.prod(p if on else 1 - p for on, (p, *_) in zip(outcome, case, strict=True))
        for on, (_, small, large, small_s, large_s) in zip(outcome, case, strict=True):
            accuracy += chance * (large if on else small) / len(case)
            seconds += chance * (small_s + (large_s if on else 0)) / len(case)
            returned += chance * (not on) / len(case)
    found = expected(*(np.array(column, float) for column in zip(*case, strict=True)))
    assert (found.accuracy, found.seconds, found.returned) == pytest.approx(
        (accuracy, seconds, returned), abs=1e-9
    )


def test_the_latency_quantile_equals_that_of_many_draws() -> None:
    rng = np.random.default_rng(0)
    p, small, large = rng.random(50), rng.random(50), 3 * rng.random(50)
    drawn = small + np.where(rng.random((20_000, 50)) < p, large, 0.0)
    for quantile in (0.25, 0.75, 0.95):
        assert latency_quantile(p, small, large, quantile) == pytest.approx(
            np.quantile(drawn, quantile), abs=0.02
        )
    assert latency_quantile([0, 0, 0, 0], [1, 2, 3, 4], [9] * 4, 0.75) == 3.0
    assert latency_quantile([1.0], [1.0], [2.0], 1.0) == 3.0


@settings(max_examples=50)
@given(st.lists(st.tuples(UNIT, UNIT), min_size=1, max_size=6), UNIT)
def test_equation_6_to_12_digits(pairs: list[tuple[float, float]], w: float) -> None:
    small, large = (np.array(column) for column in zip(*pairs, strict=True))
    slow = [math.fsum([w * b, (1 - w) * a]) for a, b in pairs]
    assert combined(small, large, w) == pytest.approx(slow, abs=1e-12)


def test_a_weight_of_0_or_1_is_one_level_to_the_bit() -> None:
    small, large = np.random.default_rng(0).random((2, 7, 3))
    large[0, 0] = np.nan  # not even times 0
    assert combined(small, large, 0.0).tobytes() == small.tobytes()
    assert combined(small, large, 1.0).tobytes() == large.tobytes()


def test_the_weight_is_in_proportion_to_the_accuracy_on_what_is_re_routed() -> None:
    p = [1.0] * 1000 + [0.0] * 500
    small = [True] * 762 + [False] * 238 + [True] * 500
    large = [True] * 914 + [False] * 86 + [False] * 500
    assert weight_of(small, large, p) == pytest.approx(0.545, abs=5e-4), "Tabi's figures of SST-2"
    assert weight_of(small, large, [0.0] * 1500) == 0.5
    assert weight_of([False], [True], [1.0]) == 1.0
    assert weight_of([True], [False], [1.0]) == 0.0


def profiled(seed: int = 0, texts: int = 400, large_s: float = 3.0) -> Profiled:
    """A small level that is right where it is sure, and a large one that is better elsewhere."""
    rng = np.random.default_rng(seed)
    sure, gold = rng.beta(2, 0.4, texts), rng.integers(0, 2, texts)
    p_small, p_large = 0.5 + sure / 2, np.full(texts, 0.93)
    said = [np.where(rng.random(texts) < p, gold, 1 - gold) for p in (p_small, p_large)]
    levels = [
        np.where(np.arange(2)[None] == s[:, None], p[:, None], 1 - p[:, None])
        for s, p in zip(said, (p_small, p_large), strict=True)
    ]
    ones = np.ones(texts)
    return Profiled(levels[0], levels[1], gold, ones, large_s * ones, large_s * ones)


def test_the_scan_over_cut_offs_stops_at_the_first_that_is_surely_worse_than_both_levels() -> None:
    data, slope = profiled(), 10.0
    worse = min((level.argmax(1) == data.gold).mean() for level in (data.small, data.large))
    least, slow = worse - (worse * (1 - worse) / 400) ** 0.5, []
    for c in (0.95 - 0.05 * i for i in range(19)):
        one = candidate(data, Dispatcher(round(c, 2), slope))
        if one.accuracy < least:
            break
        slow.append(one)
    found = [one for one in candidates(data, [slope]) if one.dispatcher.cut_off not in CAREFUL]
    assert found == [one for one in slow if one.tail_s <= MAX_TAIL * 3.0]
    assert found
    assert {one.dispatcher.cut_off for one in candidates(data, [slope])} >= {*CAREFUL}


def test_a_dispatcher_that_is_worse_than_both_levels_is_no_candidate() -> None:
    """The small level is wrong where it is sure, and elsewhere the ensemble follows the one that is wrong."""
    # How sure the small level is of its answer, whether that is right; the same of the large level.
    rows = [(0.99, False, 0.85, True)] * 35 + [(0.51, True, 0.99, False)] * 45
    rows += [(0.51, False, 0.99, True)] * 20
    small, large = (
        np.array([[row[at], 1 - row[at]] if row[at + 1] else [1 - row[at], row[at]] for row in rows])
        for at in (0, 2)
    )
    gold, ones = np.zeros(100, np.int64), np.ones(100)
    assert candidates(Profiled(small, large, gold, ones, ones, ones)) == []


def test_levels_of_about_equal_accuracy_have_candidates() -> None:
    """A dispatcher may by chance be less accurate than the mean of both levels."""
    below = 0
    for seed in range(20):
        rng, data = np.random.default_rng(seed), profiled(seed)
        sure, right = rng.uniform(0.9, 1, (400, 2)), rng.random((400, 2)) < 0.8
        first = np.where(right == (data.gold == 0)[:, None], sure, 1 - sure)  # of the label 0, by level
        small, large = (np.stack([p, 1 - p], 1) for p in first.T)
        data = replace(data, small=small, large=large)
        levels = [(level.argmax(1) == data.gold).mean() for level in (data.small, data.large)]
        one = candidate(data, Dispatcher(0.95, 10.0))
        if one.accuracy < sum(levels) / 2:
            below += 1
            assert one in candidates(data, [10.0])
    assert below


def test_a_candidates_figures_are_those_of_drawn_requests() -> None:
    data = profiled()
    one = candidate(data, Dispatcher(0.8, 5.0))
    rng, p = np.random.default_rng(1), share_large(data.small.max(1), one.dispatcher)
    on = rng.random((4000, len(p))) < p
    both = (one.weight * data.large + (1 - one.weight) * data.small).argmax(1) == data.gold
    right = np.where(on, both, data.small.argmax(1) == data.gold)
    assert one.accuracy == pytest.approx(right.mean(), abs=2e-3)
    assert one.seconds == pytest.approx((1 + 3 * on).mean(), abs=5e-3)
    assert one.returned == pytest.approx(1 - on.mean(), abs=2e-3)
    said = np.where(
        on, (one.weight * data.large + (1 - one.weight) * data.small).argmax(1), data.small.argmax(1)
    )
    assert one.agreement == pytest.approx((said == data.large.argmax(1)).mean(), abs=2e-3)


def test_expected_agreement_equals_the_sum_over_all_draws() -> None:
    data, weight = profiled(texts=8), 0.3
    p = share_large(data.small.max(1), Dispatcher(0.6, 3.0))
    both = combined(data.small, data.large, weight).argmax(1)
    total = 0.0
    for outcome in product((False, True), repeat=8):
        chance = math.prod(x if on else 1 - x for on, x in zip(outcome, p, strict=True))
        said = np.where(outcome, both, data.small.argmax(1))
        total += chance * (said == data.large.argmax(1)).mean()
    assert candidate(data, Dispatcher(0.6, 3.0), weight).agreement == pytest.approx(total, abs=1e-12)


def test_offers_are_pareto_optimal_and_faster_than_the_large_level_alone() -> None:
    data = profiled(1)
    found = offered(data, SOME)
    assert found
    scanned = candidates(data, SOME)
    scanned += [candidate(data, c.dispatcher, 1.0) for c in scanned]
    of_all = [(c.agreement, c.accuracy, -c.seconds) for c in scanned]
    for one in found:
        assert one == candidate(data, one.dispatcher, one.weight), "to the bit"
        assert one.seconds < 3.0, "slower than the large level alone"
        mine = (one.agreement, one.accuracy, -one.seconds)
        for other in of_all:
            assert other == mine or any(a < b for a, b in zip(other, mine, strict=True)), "Pareto-optimal"
    assert [one.seconds for one in found] == sorted(one.seconds for one in found)
    assert offered(profiled(1, large_s=0.4), SOME) == [], "the large level is faster than the small one"


@pytest.mark.parametrize("temperature", [0.05, 0.7, 1.0, 3.0, 20.0])
def test_probabilities_are_calibrated_as_their_logits_would_be(temperature: float) -> None:
    logits = np.random.default_rng(0).normal(size=(50, 4)) * 5
    found = calibrated(probabilities(logits), temperature)
    assert found == pytest.approx(probabilities(logits, temperature), abs=1e-12)
    assert (found.argmax(1) == logits.argmax(1)).all(), "no temperature changes an answer"
    assert calibrated([0.0, 0.25, 0.75], 2.0)[0] == 0.0


def test_candidates_whose_tail_is_too_long_are_not_offered() -> None:
    data = profiled(large_s=1.2)  # going on takes 2.2 s: more than 1.5 times the large level's 1.2
    offered = candidates(data)
    assert all(c.tail_s <= MAX_TAIL * 1.2 for c in offered)
    kept = {c.dispatcher for c in offered}
    for slope in (2.0, 10.0):
        one = candidate(data, Dispatcher(0.95, slope))
        share = latency_quantile(
            share_large(data.small.max(1), one.dispatcher), data.small_s, data.large_s, TAIL
        )
        assert (one.dispatcher in kept) == (share <= MAX_TAIL * 1.2)


def test_the_fastest_offer_that_agrees_enough_is_selected() -> None:
    slow, fast, bad, off = (
        Offer(cut_off=cut_off, slope=5, weight=1, accuracy=0.9, agreement=agreement, mean_ms=ms, returned=0.5)
        for cut_off, agreement, ms in ((0.9, 0.99, 3.0), (0.9, 0.97, 2.0), (0.9, 0.8, 1.0), (1.0, 1.0, 0.5))
    )
    more = slow.model_copy(update={"accuracy": 0.95})
    assert select([slow, fast, bad], 0.97) == fast
    assert select([slow, fast, more, bad], 0.98) == more, "of equally fast ones the most accurate"
    assert select([slow, fast, bad], 0.98, mean_ms=2.5) is None
    assert select([], 0.5) is None
    assert ladder([slow, fast, bad], 0.97) == (slow,), "at most half of the tolerated disagreements"
    assert ladder([slow, fast, bad], 0.94) == (slow, fast)
    assert ladder([fast, bad], 0.97) == (fast,), "none keeps a margin"
    shorter = fast.model_copy(update={"pruning": 0.5})
    assert ladder([slow, shorter], 0.94) == (slow,), "each pruning would need a run of its own"
    assert ladder([], 0.9) == ()
    assert ladder([more, fast], 0.94, accuracy=0.92) == (more,), "the other one loses two points of accuracy"
    assert select([off], 0.5) is None, "a cut-off of 1 sends all on: the large level alone"


@pytest.mark.parametrize(
    ("per_step", "scale"), [(0.0, 2.0), (0.004, 0.9), (0.006, 0.7), (0.02, 0.5), (0.03, 0.0)]
)
def test_pruning_grows_until_it_costs_more_than_2_percent(per_step: float, scale: float) -> None:
    asked = []

    def accuracy_at(scale: float) -> float:
        asked.append(scale)
        return 0.9 - per_step * max(0, round((scale - 0.4) * 10))

    assert pruning_scale(accuracy_at) == scale
    assert asked == [0.0, *(round(0.5 + 0.1 * i, 1) for i in range(len(asked) - 1))]
    assert asked[-1] == (2.0 if per_step == 0.0 else pytest.approx(max(scale + 0.1, 0.5))), "then it stops"


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="dispatcher"):
        Dispatcher(1.1, 1.0)
    with pytest.raises(ValueError, match="dispatcher"):
        Dispatcher(0.5, -1.0)
    with pytest.raises(ValueError, match="no profiled texts"):
        expected([], [], [], [], [])
    with pytest.raises(ValueError, match="shapes"):
        combined([0.5], [0.5, 0.5], 0.5)
    with pytest.raises(ValueError, match="weight"):
        combined([0.5], [0.5], 1.5)
