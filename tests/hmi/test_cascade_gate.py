"""The trial of one fixed policy: gate, alarm and the bound of its stream (design/0012)."""

from __future__ import annotations

import random
from itertools import count

import pytest

from hmi.core import MAX_AGREEMENT, MIN_AGREEMENT, Objective
from hmi.stages.cascade.gate import Terms, Trial
from hmi.stages.early_exit.control import Terms as ExitTerms
from hmi.stages.early_exit.drift import Alarm
from hmi.stages.early_exit.evidence import most_disagreements

TERMS = Terms(loss=0.05, share=0.25)


def solvent(texts: int, disagreed: int, share: float, loss: float, error: float) -> bool:
    """Return True if one more text may disagree while the stream stays within its rate."""
    return most_disagreements(disagreed, share, error) + 1.0 <= loss * (texts + 1)


def run(trial: Trial, rate: float, texts: int, seed: int = 0) -> tuple[int, int]:
    """Send texts that the policy gets wrong at this rate. Returns the texts that obeyed it, and the answers
    among them that were wrong: an audited one is answered by the large level."""
    rng, obeyed, wrong = random.Random(seed), 0, 0
    for _ in range(texts):
        ticket = trial.begin(rng.random() < trial.share)
        errs = rng.random() < rate
        if ticket.audited:
            trial.record(ticket, errs)
        obeyed += ticket.in_force
        wrong += ticket.in_force and errs
    return obeyed, wrong


def test_a_good_policy_is_used_once_its_audits_suffice() -> None:
    trial = Trial(TERMS)
    assert not trial.begin(audited=False).in_force
    obeyed, wrong = run(trial, 0.002, 5000)
    assert trial.open
    assert 2000 < obeyed < 4700
    assert wrong <= 0.05 * trial.texts
    assert trial.alarms == 0
    assert 0 < trial.bound < 0.05


@pytest.mark.parametrize("seed", range(5))
def test_a_policy_that_disagrees_too_often_is_not_used_and_given_up(seed: int) -> None:
    trial = Trial(TERMS)
    obeyed = 0
    while not trial.hopeless:
        obeyed += run(trial, 0.12, 100, seed + trial.texts)[0]
        assert trial.texts < 10_000
    assert obeyed == 0
    policy = trial.policy
    trial.renew()
    assert (trial.policy, trial.own.seen, trial.hopeless) == (policy + 1, 0, False)


@pytest.mark.parametrize("seed", range(4))
def test_the_alarm_closes_the_gate_and_the_whole_stream_keeps_its_rate(seed: int) -> None:
    trial = Trial(TERMS)
    _, before = run(trial, 0.002, 4000, seed)
    assert trial.open
    wrong = before
    for step in range(60):
        wrong += run(trial, 0.5, 50, 1000 * seed + step)[1]
        assert wrong <= TERMS.loss * trial.texts, "whatever the stream does"
    assert trial.alarms == 1
    assert not trial.open, "evidence begins anew"
    assert run(trial, 0.5, 500, seed)[0] == 0


def test_solvency_is_that_of_the_whole_stream() -> None:
    trial = Trial(TERMS)
    for texts in range(600):
        assert trial.solvent == solvent(texts, 0, TERMS.share, TERMS.loss, TERMS.error)
        trial.begin(audited=False)
    assert trial.solvent


def test_audits_under_way_count_as_disagreements_until_they_are_reported() -> None:
    trial = Trial(TERMS)
    run(trial, 0.0, 1000)
    assert trial.open
    assert trial.solvent
    tickets = [trial.begin(audited=True) for _ in range(60)]
    assert not trial.solvent
    for i, ticket in enumerate(tickets):
        if i % 2:
            trial.abandon(ticket)
        else:
            trial.record(ticket, disagrees=False)
    assert trial.solvent


def test_audits_of_a_policy_that_was_given_up_say_nothing_of_the_next() -> None:
    trial = Trial(TERMS)
    old = trial.begin(audited=True)
    trial.renew()
    trial.record(old, disagrees=True)
    assert trial.own.seen == 0


@pytest.mark.parametrize("agreement", [MIN_AGREEMENT, 0.9, 0.95, 0.99, MAX_AGREEMENT])
def test_a_tenants_agreement_gives_terms_that_gate_and_alarm_take(agreement: float) -> None:
    terms = Terms.of(agreement)
    assert terms.loss <= 1 - agreement + 1e-12
    assert 0.01 <= terms.share <= 0.25
    Trial(terms)
    Alarm(ExitTerms(loss=1.0 - agreement).loss)
    first = next(n for n in count(0, 50) if solvent(n, 0, terms.share, terms.loss, terms.error))
    assert first < (2000 if agreement <= 0.99 else 20 / terms.loss)


def test_an_agreement_that_the_alarm_cannot_watch_is_no_objective() -> None:
    with pytest.raises(ValueError, match="agreement"):
        Objective(agreement=0.5)
