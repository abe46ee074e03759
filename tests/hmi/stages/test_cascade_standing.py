"""The standing of a cascade: closed until audits suffice, solvent, closed again by an alarm."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from hmi.core import ModelId, Objective
from hmi.stages.cascade.standing import TextDecision, VersionEvidence
from hmi.stages.cascade.watched import MAX_AGREEMENTS, CascadeEvidence, Evidence
from tests.hmi.stages.test_cascade_inside import CASCADE, OFFER

OFFERS = tuple(
    OFFER.model_copy(update={"mean_ms": ms, "agreement": a}) for ms, a in ((1.0, 0.99), (2.0, 0.999))
)


def made(offers: int = 1, agreement: float = 0.98, deadline_ms: float | None = None) -> VersionEvidence:
    cascade = CASCADE.model_copy(update={"offers": OFFERS[:offers]})
    return VersionEvidence(CascadeEvidence(cascade, Objective(agreement=agreement, deadline_ms=deadline_ms)))


def stream(
    standing: VersionEvidence, rates: list[float], seed: int = 0
) -> tuple[int, int, list[TextDecision | None]]:
    """Ask about one text for each rate, which is the probability that the offer errs. Returns the wrong
    answers, the texts that an offer decided about, and what was decided."""
    rng, wrong, followed, begun = random.Random(seed), 0, 0, list[TextDecision | None]()
    for i, rate in enumerate(rates):
        errs, one = rng.random() < rate, standing.begin(f"{seed}-{i}")
        begun.append(one)
        if one is None:
            continue
        if one.ticket.in_force:
            wrong, followed = wrong + errs, followed + 1
        if one.ticket.audited or not one.ticket.in_force:
            standing.record(one, disagrees=[errs] * len(one.offers))
    return wrong, followed, begun


def test_an_offer_is_followed_once_its_audits_suffice() -> None:
    standing = made()
    wrong, followed, begun = stream(standing, [0.002] * 6000)
    first = next(i for i, one in enumerate(begun) if one is not None and one.ticket.in_force)
    assert first > 150, "fewer audits than this cannot show 2% at an error of 5%"
    assert followed > 2500
    assert wrong <= 0.02 * 6000


@pytest.mark.parametrize("seed", range(3))
def test_offers_that_err_too_often_are_given_up(seed: int) -> None:
    standing = made(2)
    _, followed, begun = stream(standing, [0.06] * 3000, seed)
    assert followed == 0
    tried = list(dict.fromkeys(one.offers for one in begun if one is not None))
    assert tried == [OFFERS[::-1]], "both at once, the careful one first"
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
            if one is not None and (one.ticket.audited or not one.ticket.in_force):
                standing.record(one, disagrees=[False])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert standing.report.texts == 1600
    assert standing._watched.trial.under_way == 0


ABOUT = ModelId("acme", "m"), "artefact"
BOTH = CASCADE.model_copy(update={"offers": OFFERS})


def audited(watched: CascadeEvidence, texts: int) -> CascadeEvidence:
    for _ in range(texts):
        watched.audit(watched.trial.begin(audited=True), disagrees=[False, False][: len(watched.offers)])
    return watched


def test_another_objective_and_back_loses_no_evidence() -> None:
    evidence, wanted = Evidence(10), Objective(agreement=0.9)
    first = audited(evidence.of(*ABOUT, BOTH, wanted), 200)
    assert first.trial.open
    other = evidence.of(*ABOUT, BOTH, Objective(agreement=0.8))
    assert not other.trial.open
    assert other.trial.round == first.trial.round + 1, "all rounds share one error"
    assert evidence.of(*ABOUT, BOTH, wanted) is first
    report = evidence.report(*ABOUT, "", 0.9)
    assert report is not None
    assert report.audited == 200
    for agreement in (None, 0.95):
        assert evidence.report(*ABOUT, "", agreement) is None, "no text has come under that one"
    evidence.of(*ABOUT, BOTH, Objective(agreement=0.95))
    fresh = evidence.report(*ABOUT, "", 0.95)
    assert fresh is not None
    assert fresh.audited == 0
    report = evidence.report(*ABOUT, "", 0.9)
    assert report is not None
    assert report.audited == 200
    for i in range(MAX_AGREEMENTS):
        evidence.of(*ABOUT, BOTH, Objective(agreement=0.6 + i / 100))
    again = evidence.of(*ABOUT, BOTH, wanted)
    assert again is not first, "too many others"
    assert again.trial.round == MAX_AGREEMENTS + 3
    assert evidence.of(*ABOUT, CASCADE, wanted).trial.round == 0, "another profile"


def test_another_mean_time_keeps_the_evidence_of_the_same_offer_and_the_account() -> None:
    evidence = Evidence(10)
    watched = audited(evidence.of(*ABOUT, BOTH, Objective(agreement=0.9)), 200)
    for allowed_ms in (5.0, 1.5, None):
        assert evidence.of(*ABOUT, BOTH, Objective(agreement=0.9, deadline_ms=allowed_ms)) is watched
        assert (watched.trial.open, watched.offer) == (True, OFFERS[0])
    evidence.of(*ABOUT, BOTH, Objective(agreement=0.9, deadline_ms=0.5))
    assert watched.offer is None
    assert evidence.of(*ABOUT, BOTH, Objective(agreement=0.9)).offer == OFFERS[0]
    assert not watched.trial.open, "another policy was chosen in between"
    assert watched.trial.texts == 200


def test_evidence_of_deleted_artefacts_and_of_those_used_longest_ago_is_dropped() -> None:
    evidence, wanted = Evidence(2), Objective(agreement=0.9)
    of_two = BOTH.model_copy(update={"small": "acme.s", "small_artefact": "small"})
    models = [ModelId("acme", name) for name in "abc"]
    for model in models:
        evidence.of(model, "large", of_two, wanted)
    assert [evidence.report(m, "large", "small", 0.9) is not None for m in models] == [False, True, True]
    evidence.forget(["else"])
    assert evidence.report(models[2], "large", "small", 0.9) is not None
    evidence.forget(["small"])
    assert evidence.report(models[2], "large", "small", 0.9) is None


def test_evidence_outlives_a_restart_once(tmp_path: Path) -> None:
    path, wanted = tmp_path / "cascades" / "inside", Objective(agreement=0.9, deadline_ms=5.0)
    first = Evidence(10, path)
    before = audited(first.of(*ABOUT, BOTH, wanted), 200)
    for _ in range(300):
        before.trial.begin(audited=False)
    before.trial.begin(audited=True)  # under way, as the engine stops
    first.of(*ABOUT, BOTH, Objective(agreement=0.8))
    first.of(ModelId("acme", "other"), "artefact", BOTH, wanted)
    first.close()
    again = Evidence(10, path)
    assert not path.exists(), "no two streams spend from one account"
    after = again.of(*ABOUT, BOTH, wanted)
    assert (after.offers, after.trial.gates) == (before.offers, before.trial.gates)
    assert after.trial.open
    assert after.trial.alarm == before.trial.alarm
    account = before.trial.account
    (count,) = (count for count in account.counts if count.pending)
    count.wrong += 1
    count.pending.clear()
    assert (after.trial.account.counts, after.trial.texts) == (account.counts, account.texts)
    assert after.report.audited == 200
    assert again.of(*ABOUT, BOTH, Objective(agreement=0.7)).trial.round == 2, "rounds are counted on"
    assert again.of(*ABOUT, CASCADE, wanted).trial.texts == 0, "another profile"
    again.close()
    third = Evidence(10, path)
    third.forget(["artefact"])
    assert third.of(ModelId("acme", "other"), "artefact", BOTH, wanted).trial.texts == 0
    path.write_bytes(b"damaged")
    assert Evidence(10, path).of(*ABOUT, BOTH, wanted).trial.texts == 0
