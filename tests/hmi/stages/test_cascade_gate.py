"""The trial of one fixed policy: gate, alarm and the bound of its stream (design/0012)."""

from __future__ import annotations

import random

import pytest

from hmi.core import MAX_AGREEMENT, MIN_AGREEMENT, Objective
from hmi.stages.cascade.gate import StreamEvidence, Terms
from hmi.stages.early_exit.account import Phase
from hmi.stages.early_exit.control import ExitBounds as ExitTerms
from hmi.stages.early_exit.evidence import Alarm, most_disagreements

TERMS = Terms(loss=0.05, phases=(Phase(0.25, 1.0),))


def solvent(texts: int, disagreed: int, early: int, loss: float = 0.05) -> bool:
    """Return True if one more text may disagree while the stream stays within its rate. disagreed: the audits
    that did, whose answers were the policy's; early: the texts that obeyed the policy and were no audits."""
    bound = min(early, most_disagreements(disagreed, 0.25, TERMS.error)) if early else 0.0
    return disagreed + bound + 1.0 <= loss * (texts + 1)


def run(trial: StreamEvidence, rate: float, texts: int, seed: int = 0) -> tuple[int, int]:
    """Send texts that the policy gets wrong at this rate. Returns the texts that obeyed it, and the answers
    among them that were wrong, those of audited texts included."""
    rng, obeyed, wrong = random.Random(seed), 0, 0
    for _ in range(texts):
        ticket = trial.begin(rng.random() < trial.share)
        errs = rng.random() < rate
        if ticket.audited:
            trial.record(ticket, [errs])
        obeyed += ticket.in_force
        wrong += ticket.in_force and errs
    return obeyed, wrong


def test_a_good_policy_is_used_once_its_audits_suffice() -> None:
    trial = StreamEvidence(TERMS)
    assert not trial.begin(audited=False).in_force
    obeyed, wrong = run(trial, 0.002, 5000)
    assert trial.open
    assert 2000 < obeyed < 4700
    assert wrong <= 0.05 * trial.texts
    assert trial.alarms == 0
    assert 0 < trial.bound < 0.05


@pytest.mark.parametrize("seed", range(5))
def test_a_policy_that_disagrees_too_often_is_not_used_and_given_up(seed: int) -> None:
    trial = StreamEvidence(TERMS)
    obeyed = 0
    while not trial.hopeless:
        obeyed += run(trial, 0.12, 100, seed + trial.texts)[0]
        assert trial.texts < 10_000
    assert obeyed == 0
    number = trial.round
    trial.renew(1)
    assert (trial.round, trial.own.seen, trial.hopeless) == (number + 1, 0, False)


@pytest.mark.parametrize("seed", range(4))
def test_the_alarm_closes_the_gate_and_the_whole_stream_keeps_its_rate(seed: int) -> None:
    trial = StreamEvidence(TERMS)
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
    trial, early, texts = StreamEvidence(TERMS), 0, 0
    while not trial.open:
        trial.record(trial.begin(audited=True), [False])
        texts += 1
    for _ in range(1500):
        assert trial.solvent == solvent(texts, 0, early)
        early += trial.begin(audited=False).in_force
        texts += 1
    assert trial.solvent
    trial.alarm, wrong = Alarm(TERMS.loss, run_length=10**300), 0
    while trial.solvent:
        assert solvent(texts, wrong, early)
        trial.record(trial.begin(audited=True), [True])
        texts, wrong = texts + 1, wrong + 1
    assert not solvent(texts, wrong, early)
    assert wrong > 5


def test_audits_under_way_count_as_disagreements_until_they_are_reported() -> None:
    trial = StreamEvidence(TERMS)
    run(trial, 0.0, 1000)
    assert trial.open
    assert trial.solvent
    tickets = [trial.begin(audited=True) for _ in range(60)]
    assert not trial.solvent
    for i, ticket in enumerate(tickets):
        if i % 2:
            trial.abandon(ticket)
        else:
            trial.record(ticket, disagrees=[False])
    assert trial.solvent


def test_audits_of_a_policy_that_was_given_up_say_nothing_of_the_next() -> None:
    trial = StreamEvidence(TERMS)
    old = trial.begin(audited=True)
    trial.renew(1)
    trial.record(old, disagrees=[True])
    assert trial.own.seen == 0


@pytest.mark.parametrize("agreement", [MIN_AGREEMENT, 0.9, 0.95, 0.99, MAX_AGREEMENT])
def test_a_tenants_agreement_gives_terms_that_gate_and_alarm_take(agreement: float) -> None:
    trial, first = StreamEvidence(Terms.of(agreement)), 0
    Alarm(ExitTerms(loss=1.0 - agreement).loss)
    while not trial.begin(audited=False).in_force:
        trial.record(trial.begin(audited=True), [False])
        first += 2
    assert first < 2000 if agreement <= 0.99 else first < 20 / trial.terms.loss


def test_of_policies_that_are_tested_at_once_the_boldest_that_suffices_is_in_force() -> None:
    """Policy 0 never errs, 1 errs on 1% of texts, 2 on 20%, and an error of one is an error of the next."""
    rng, trial, seen = random.Random(1), StreamEvidence(Terms(0.05), versions=3), []
    wrong = 0
    for _ in range(4000):
        ticket, draw = trial.begin(rng.random() < trial.share), rng.random()
        errs = [False, draw < 0.01, draw < 0.2]
        wrong += ticket.version is not None and errs[ticket.version]
        if ticket.audited:
            trial.record(ticket, errs)
        seen.append(ticket.version)
    assert list(dict.fromkeys(seen)) == [None, 0, 1]
    assert seen.index(1) < 1000
    assert wrong <= 0.05 * 4000
    assert trial.share < 0.2, "fewer audits do by then"


def test_an_agreement_that_the_alarm_cannot_watch_is_no_objective() -> None:
    with pytest.raises(ValueError, match="agreement"):
        Objective(agreement=0.5)
