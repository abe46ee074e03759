"""The standing of a cascade: closed until audits suffice, solvent, closed again by an alarm."""

from __future__ import annotations

import random
import threading

import pytest

from hmi.core import Objective
from hmi.stages.cascade.standing import Begun, Standing
from tests.hmi.test_cascade_inside import CASCADE, OFFER

OFFERS = tuple(
    OFFER.model_copy(update={"mean_ms": ms, "agreement": a}) for ms, a in ((1.0, 0.99), (2.0, 0.999))
)


def made(offers: int = 1, agreement: float = 0.98, deadline_ms: float | None = None) -> Standing:
    cascade = CASCADE.model_copy(update={"offers": OFFERS[:offers]})
    return Standing(cascade, Objective(agreement=agreement, deadline_ms=deadline_ms))


def stream(standing: Standing, rates: list[float], seed: int = 0) -> tuple[int, int, list[Begun | None]]:
    """Ask about one text for each rate, which is the probability that the offer errs. Returns the wrong
    answers, the followed texts, and what was decided."""
    rng, wrong, followed, begun = random.Random(seed), 0, 0, list[Begun | None]()
    for i, rate in enumerate(rates):
        errs, one = rng.random() < rate, standing.begin(f"{seed}-{i}")
        begun.append(one)
        if one is not None and one.followed:
            wrong, followed = wrong + errs, followed + 1
        elif one is not None:
            standing.record(one, disagrees=errs)
    return wrong, followed, begun


def test_an_offer_is_followed_once_its_audits_suffice() -> None:
    standing = made()
    wrong, followed, begun = stream(standing, [0.002] * 6000)
    first = next(i for i, one in enumerate(begun) if one is not None and one.followed)
    assert first > 150, "fewer audits than this cannot show 2% at an error of 5%"
    assert followed > 2500
    assert wrong <= 0.02 * 6000
    assert all(one is not None and not (one.followed and one.ticket.audited) for one in begun)


@pytest.mark.parametrize("seed", range(3))
def test_an_offer_that_errs_too_often_is_given_up_for_the_next(seed: int) -> None:
    standing = made(2)
    _, followed, begun = stream(standing, [0.06] * 3000, seed)
    assert followed == 0
    tried = list(dict.fromkeys(one.offer for one in begun if one is not None))
    assert tried == list(OFFERS), "the fastest first"
    assert begun[-1] is None
    assert standing.report.state == "no offer"


@pytest.mark.parametrize("seed", range(3))
def test_a_drift_rings_the_alarm_and_the_stream_keeps_its_agreement(seed: int) -> None:
    standing = made()
    wrong, followed, _ = stream(standing, [0.002] * 5000 + [0.2] * 3000, seed)
    assert followed > 1500
    assert standing.report.alarms >= 1
    assert wrong <= 0.02 * 8000


def test_no_offer_of_the_profile_is_careful_enough() -> None:
    assert made(2, agreement=0.9995).begin("a") is None
    assert made(2, deadline_ms=0.5).begin("a") is None


def test_counts_are_exact_under_threads() -> None:
    standing = made()

    def work(name: int) -> None:
        for i in range(400):
            one = standing.begin(f"{name}-{i}")
            if one is not None and not one.followed:
                standing.record(one, disagrees=False)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert standing.report.texts == 1600
    assert standing._watched.trial._under_way == 0
