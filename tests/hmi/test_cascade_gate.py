"""The test of a cascade's offers: closed until audits suffice, solvent, closed by an alarm."""

from __future__ import annotations

import random
import threading

import pytest

from hmi.stages.cascade.gate import Begun, Trial, terms_for
from hmi.stages.early_exit.control import Terms

TERMS = Terms(loss=0.02)


def stream(tested: Trial, rates: list[float], seed: int = 0) -> tuple[int, int, list[Begun | None]]:
    """Ask about one text for each rate, which is the probability that the offer errs. Returns the wrong
    answers, the followed texts, and what was decided."""
    rng, wrong, followed, begun = random.Random(seed), 0, 0, []
    for i, rate in enumerate(rates):
        errs, one = rng.random() < rate, tested.begin(f"{seed}-{i}")
        begun.append(one)
        if one is not None and one.followed:
            wrong, followed = wrong + errs, followed + 1
        elif one is not None:
            tested.report(one, disagrees=errs)
    return wrong, followed, begun


def test_an_offer_is_followed_once_its_audits_suffice() -> None:
    tested = Trial(1, TERMS)
    wrong, followed, begun = stream(tested, [0.002] * 6000)
    first = next(i for i, one in enumerate(begun) if one is not None and one.followed)
    assert first > 150, "fewer audits than this cannot show 2% at an error of 5%"
    assert followed > 2500
    assert wrong <= 0.02 * 6000
    assert tested.counts.open
    assert all(one is not None and not (one.followed and one.audited) for one in begun)


@pytest.mark.parametrize("seed", range(4))
def test_an_offer_that_errs_too_often_is_given_up_for_the_next(seed: int) -> None:
    tested = Trial(2, TERMS)
    _, followed, begun = stream(tested, [0.06] * 3000, seed)
    assert followed == 0
    assert begun[-1] is None, "both offers have failed: nothing is left to test"
    assert tested.counts.offer is None


@pytest.mark.parametrize("seed", range(4))
def test_a_drift_rings_the_alarm_and_the_stream_keeps_its_agreement(seed: int) -> None:
    tested = Trial(1, TERMS)
    wrong, followed, _ = stream(tested, [0.002] * 5000 + [0.2] * 3000, seed)
    assert followed > 1500
    assert tested.counts.alarms >= 1
    assert not tested.counts.open
    assert wrong <= 0.02 * 8000


def test_an_audit_under_way_counts_as_a_disagreement_until_it_is_reported_or_abandoned() -> None:
    tested = Trial(1, Terms(loss=0.02, share=1.0))
    stream(tested, [0.0] * 2000)
    (held,) = {one for one in (tested.begin("held"),) if one is not None}
    assert (held.audited, held.at_stake, held.followed) == (True, True, False)
    assert tested._under_way == 1
    tested.abandon(held)
    assert tested._under_way == 0


def test_a_report_to_an_earlier_test_does_not_count() -> None:
    tested = Trial(2, TERMS)
    old = tested.begin("old")
    assert old is not None
    stream(tested, [1.0] * 1200)
    seen = tested.counts
    tested.report(old, disagrees=False)
    assert tested.counts.audits == seen.audits


def test_counts_are_exact_under_threads() -> None:
    tested = Trial(1, Terms(loss=0.02, share=0.5))

    def work(name: int) -> None:
        for i in range(400):
            one = tested.begin(f"{name}-{i}")
            if one is not None and not one.followed:
                tested.report(one, disagrees=False)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tested.counts.texts == 1600
    assert tested._under_way == 0


def test_the_loosest_agreement_still_has_a_gate() -> None:
    assert Trial(1, terms_for(0.5)).begin("a") is not None
