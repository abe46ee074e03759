"""Ramp adjustment: costs and counts in, sites out (design/0012)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmi.stages.early_exit.ramps import Costs, Counts, Ramps, adjust, first, saved_s, utility, within

EVEN = Costs((1.0,) * 8, (0.05,) * 8)


def busy(*lefts: int, reached: int = 128) -> list[Counts]:
    """Counts of consecutive ramps: who leaves at one does not reach the next."""
    found = []
    for left in lefts:
        found.append(Counts(reached, left))
        reached -= left
    return found


def at(active: tuple[int, ...], *lefts: int) -> dict[int, Counts]:
    return dict(zip(active, busy(*lefts), strict=True))


def test_utility_equals_the_time_with_the_ramp_against_the_time_without_text_by_text() -> None:
    site, counts = 3, Counts(10, 4)
    without = sum(EVEN.layer_s[site:]) * counts.reached
    with_ramp = sum(
        EVEN.ramp_s[site] + (0.0 if text < counts.left else sum(EVEN.layer_s[site:]))
        for text in range(counts.reached)
    )
    assert utility(EVEN, site, counts) == pytest.approx(without - with_ramp)


def test_an_exit_avoids_later_layers_and_later_ramps() -> None:
    costs = Costs((1.0, 2.0, 4.0), (0.1, 0.2, 0.3))
    assert saved_s(costs, (0, 2)) == pytest.approx([7.3, 4.0])
    assert saved_s(costs, ()) == []


def test_ramps_start_evenly_spaced_within_the_budget() -> None:
    assert first(EVEN, 0.025).active == (0, 2, 4, 6)
    assert first(EVEN, 0.02).active == (0, 2, 5)
    assert first(EVEN, 0.0).active == (), "no budget, no ramps"
    assert EVEN.overhead(first(EVEN, 0.02).active) <= 0.02


def test_ramps_that_lose_time_are_removed_and_not_tried_again() -> None:
    after = adjust(EVEN, Ramps((2, 4)), at((2, 4), 60, 0), budget=0.05)
    assert 2 in after.active
    assert 4 not in after.active
    assert after.failed == {4}
    later = adjust(EVEN, after, {site: Counts(128, 0) for site in after.active}, budget=0.05)
    assert not set(later.active) & set(after.active), "all of them lost"
    assert later.failed >= set(after.active)


def test_the_trial_is_the_middle_of_the_interval_with_the_highest_bound() -> None:
    # After site 1, removed ramps at 3 and 6 leave the intervals 2..2, 4..5 and 7..7. Bounds: up to 3, 1 left;
    # up to 6, 1 + 2; after it, all who came past site 1.
    counts = at((1, 3, 6), 60, 1, 1)
    after = adjust(Costs((1.0,) * 8, (0.2,) * 8), Ramps((1, 3, 6)), counts, budget=1.0)
    assert after.active == (1, 7), "68 texts might leave at 7 and save a layer each"
    assert after.failed == {3, 6}


def test_later_sites_follow_if_the_middle_cannot_pay() -> None:
    # The middle of the sites after 1 is dear, the next is not.
    costs = Costs((1.0,) * 6, (0.01, 0.01, 0.01, 0.01, 9.0, 0.01))
    counts = {1: Counts(100, 50), 2: Counts(50, 0), 3: Counts(50, 0)}
    after = adjust(costs, Ramps((1, 2, 3)), counts, budget=3.0)
    assert after.active == (1, 5)


def test_without_a_loss_an_earlier_site_is_tried() -> None:
    counts = at((2, 5), 60, 20)
    assert adjust(EVEN, Ramps((2, 5)), counts, budget=0.02).active == (1, 2, 5), "before the most useful"
    assert adjust(EVEN, Ramps((2, 5)), counts, budget=0.0125).active == (2, 4), "the least useful moves"
    assert adjust(EVEN, Ramps((0,)), {0: Counts(9, 9)}, budget=1.0).active == (0,), "there is no earlier site"


def test_a_failed_site_is_not_tried_before_the_most_useful_either() -> None:
    ramps = Ramps((2,), frozenset({1}))
    assert adjust(EVEN, ramps, {2: Counts(100, 90)}, budget=1.0) == ramps


def test_a_stage_whose_ramps_all_lose_is_off_in_the_end() -> None:
    ramps = first(EVEN, 0.03)
    for _ in range(len(EVEN.layer_s)):
        ramps = adjust(EVEN, ramps, {site: Counts(128, 0) for site in ramps.active}, budget=0.03)
    assert ramps.active == ()
    assert adjust(EVEN, ramps, {}, budget=0.03) == ramps


@st.composite
def situations(draw: st.DrawFn) -> tuple[Costs, Ramps, dict[int, Counts], float]:
    layers = draw(st.integers(1, 8))
    times = st.lists(st.floats(0.1, 2.0), min_size=layers, max_size=layers)
    costs = Costs(tuple(draw(times)), tuple(t / 10 for t in draw(times)))
    active = tuple(sorted(draw(st.sets(st.integers(0, layers - 1)))))
    counts, reached = {}, 128
    for site in active:
        left = draw(st.integers(0, reached))
        counts[site] = Counts(reached, left)
        reached -= left
    failed = frozenset(draw(st.sets(st.integers(0, layers - 1)))) - set(active)
    return costs, Ramps(active, failed), counts, draw(st.floats(0, 0.5))


@settings(max_examples=150)
@given(situations())
def test_the_overhead_is_within_the_budget_and_useless_ramps_go(
    situation: tuple[Costs, Ramps, dict[int, Counts], float],
) -> None:
    costs, ramps, counts, budget = situation
    after = adjust(costs, ramps, counts, budget)
    assert costs.overhead(after.active) <= budget
    assert list(after.active) == sorted(set(after.active))
    assert not set(after.active) & after.failed
    assert all(0 <= site < len(costs.layer_s) for site in after.active)
    new = set(after.active) - set(ramps.active)
    assert len(new) <= 1, "one trial at a time"
    losing = {site for site in ramps.active if utility(costs, site, counts[site]) < 0}
    assert not losing & set(after.active)
    assert after.failed == ramps.failed | losing


def test_a_dearer_measurement_drops_new_ramps_first_then_the_least_useful() -> None:
    worth = {1: 5.0, 3: 1.0, 6: 9.0}
    assert within(EVEN, Ramps((1, 2, 3, 6)), worth, 0.02).active == (1, 3, 6)
    assert within(EVEN, Ramps((1, 2, 3, 6)), worth, 0.0125).active == (1, 6)
    assert within(EVEN, Ramps((1, 2, 3, 6)), worth, 0.0).active == ()


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="counts"):
        adjust(EVEN, Ramps((1,)), {}, 0.1)
    with pytest.raises(ValueError, match="costs"):
        Costs((1.0,), (-0.1,))
    with pytest.raises(ValueError, match="costs"):
        Costs((1.0,), ())
