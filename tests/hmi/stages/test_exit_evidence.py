"""The evidence of audits: bounds, the gate and the alarm, with their stated errors (design/0012).

Draws are seeded, and each tolerance is far from what the guarantee allows.
"""

from __future__ import annotations

from dataclasses import replace
from math import comb

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import beta

from hmi.stages.early_exit.account import PHASES, Account
from hmi.stages.early_exit.evidence import (
    HIGHEST,
    PARTS,
    STRENGTHS,
    Alarm,
    Audits,
    Gate,
    error_for_policy,
    log_evidence,
    most_disagreements,
    rates_above,
    upper_bound,
)

LOSS, ERROR = 0.01, 0.05


def binomial_tail(x: int, n: int, rate: float) -> float:
    """The probability of at most x disagreements in n audits."""
    return sum(comb(n, i) * rate**i * (1 - rate) ** (n - i) for i in range(x + 1))


def bisected_bound(x: int, n: int, error: float) -> float:
    """The reference: the rate at which so few disagreements have the probability `error`."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if binomial_tail(x, n, middle) > error else (low, middle)
    return high


def slow_evidence(audits: Audits, loss: float) -> float:
    """The reference: the mean likelihood ratio over the rates below `loss`, by the trapezium rule."""
    rates = np.linspace(0.0, np.sqrt(loss), 200_001)[1:] ** 2  # denser near 0, where the prior has its pole
    weights = beta.pdf(rates, 0.5, 2 / loss)
    ratio = (rates / loss) ** audits.disagreed
    ratio *= ((1 - rates) / (1 - loss)) ** (audits.seen - audits.disagreed)
    return float(np.log(np.trapezoid(weights * ratio, rates) / np.trapezoid(weights, rates)))


@settings(max_examples=60)
@given(st.integers(0, 120), st.integers(0, 120), st.sampled_from([0.2, 0.05, 0.001]))
def test_the_upper_bound_is_clopper_and_pearsons(agreed: int, disagreed: int, error: float) -> None:
    n = agreed + disagreed
    found = upper_bound(Audits(n, disagreed), error)
    assert found == pytest.approx(bisected_bound(disagreed, n, error) if agreed else 1.0, abs=1e-9)


def test_without_audits_nothing_is_known() -> None:
    assert upper_bound(Audits(), ERROR) == 1.0
    assert not Gate(LOSS, ERROR).open


@pytest.mark.parametrize(("seen", "disagreed"), [(0, 0), (1, 1), (400, 0), (400, 3), (3000, 40)])
def test_the_evidence_equals_its_integral(seen: int, disagreed: int) -> None:
    audits = Audits(seen, disagreed)
    assert log_evidence(audits, LOSS) == pytest.approx(slow_evidence(audits, LOSS), abs=2e-3)


@settings(max_examples=80)
@given(st.integers(0, 3000), st.floats(0, 0.2), st.floats(0.01, 1.0), st.sampled_from([0.002, 0.01, 0.1]))
def test_the_evidence_cannot_grow_in_expectation_if_the_rate_is_too_high(
    seen: int, part: float, rate: float, loss: float
) -> None:
    rate, audits = max(rate, loss), Audits(seen, round(part * seen))
    now = log_evidence(audits, loss)
    assume(np.isfinite(now))  # below the smallest number it is −inf, which opens no gate
    agrees, disagrees = (np.exp(log_evidence(audits.plus(d), loss) - now) for d in (False, True))
    assert rate * disagrees + (1 - rate) * agrees <= 1 + 1e-9


def test_the_gate_opens_for_a_tenant_who_agrees_and_not_much_later_than_any_gate_could() -> None:
    gate = Gate(LOSS, ERROR)
    while not gate.open:
        gate = gate.after(False)
    least = np.log(ERROR) / np.log(1 - LOSS)
    assert least < gate.own.seen < 1.2 * least


def test_a_disagreement_costs_evidence_and_only_new_audits_make_up_for_it() -> None:
    gate = Gate(LOSS, ERROR)
    for _ in range(300):
        gate = gate.after(False)
    before = log_evidence(gate.own, LOSS)
    gate = gate.after(True)
    assert log_evidence(gate.own, LOSS) < before
    for _ in range(200):
        gate = gate.after(False)
    assert not gate.open
    for _ in range(200):
        gate = gate.after(False)
    assert gate.open


def looks(rate: float, streams: int, audits: int) -> np.ndarray:
    """Disagreements so far, by stream and audit: int [streams, audits]."""
    return (np.random.default_rng(7).random((streams, audits)) < rate).cumsum(1)


def test_a_gate_read_after_every_audit_keeps_its_error_and_a_plain_bound_does_not() -> None:
    streams, audits, error = 300, 2500, 0.1
    found = looks(LOSS, streams, audits)
    enough: dict[int, int] = {}  # the fewest audits that open the gate, by disagreements
    at = 0
    for disagreed in range(int(found.max()) + 1):
        at = max(at, disagreed)
        while at <= audits and log_evidence(Audits(at, disagreed), LOSS) < -np.log(error):
            at += 1
        enough[disagreed] = at
    needed = np.vectorize(enough.get)(found)
    opened = (np.arange(1, audits + 1) >= needed).any(1).mean()
    bound = beta.ppf(1 - error, found + 1, np.arange(1, audits + 1) - found)
    fooled = (np.nan_to_num(bound, nan=1.0) <= LOSS).any(1).mean()
    assert opened <= error, "at exactly the tolerated rate"
    assert fooled > 2 * error, "Clopper–Pearson, read at every audit"


def test_errors_granted_to_all_policies_of_a_tenant_sum_to_the_tenants_error() -> None:
    assert sum(error_for_policy(ERROR, policy) for policy in range(10_000)) == pytest.approx(ERROR, rel=1e-3)
    assert error_for_policy(ERROR, 0) == ERROR / 2


def test_a_tenant_who_disagrees_is_not_let_through_whatever_others_do() -> None:
    # A gate takes nothing but the tenant's own audits: there is no argument by which others could help.
    assert set(Gate.__dataclass_fields__) == {"loss", "error", "own", "open"}
    rng, opened = np.random.default_rng(1), 0
    for _ in range(60):
        gate = Gate(LOSS, ERROR)
        for disagrees in rng.random(600) < 0.03:
            gate = gate.after(bool(disagrees))
        opened += gate.open
    assert opened == 0


def late_bound(stream: np.ndarray, share: float, seed: int) -> bool:
    """Return whether the bound of a stream's early answers that disagree is ever exceeded."""
    audited = np.random.default_rng(seed).random(len(stream)) < share
    found, true = (stream & audited).cumsum(), (stream & ~audited).cumsum()
    bounds = np.array([most_disagreements(x, share, 0.1) for x in range(int(found[-1]) + 1)])
    return bool((true > bounds[found]).any())


@pytest.mark.parametrize("shape", ["even", "all at the end", "all at once", "always"])
def test_the_bound_of_a_stream_holds_at_all_times_whatever_the_stream_does(shape: str) -> None:
    stream = np.zeros(2000, bool)
    stream[{"even": slice(0, None, 50), "all at the end": slice(1900, None)}.get(shape, slice(0, 100))] = True
    stream |= shape == "always"
    exceeded = sum(late_bound(stream, 0.2, seed) for seed in range(200))
    assert exceeded <= 20


def test_the_bound_of_a_stream_is_an_exact_martingale() -> None:
    assert PARTS.sum() == pytest.approx(1.0)
    for share in (0.01, 0.3, 0.9):
        for strength, part in zip(STRENGTHS, PARTS, strict=True):
            c = np.log((1 - share * np.exp(-strength)) / (1 - share))
            assert share * np.exp(-strength) + (1 - share) * np.exp(c) == pytest.approx(1.0)
            for audits in (0, 3):
                one = (strength * audits - np.log(part * 0.05)) / c
                assert most_disagreements(audits, share, 0.05) <= one + 1e-9
    assert most_disagreements(3, 1.0, 1e-9) == 0.0, "all audited: nobody left"
    assert all(most_disagreements(x, 0.1, 0.05) > 9 * x for x in range(50))


def test_while_every_text_is_audited_what_is_spent_is_known_exactly() -> None:
    account = Account(LOSS, ERROR, texts=499)
    for i in range(5):
        assert account.solvent
        account.left(account.count, i)
    assert not account.solvent, "five under way, of 500 texts"
    for i in range(4):
        del account.count.pending[i]
    account.count.wrong += 3
    assert account.solvent, "three were wrong, one is under way"
    account.count.wrong += 1
    assert not account.solvent


def test_audits_under_way_cost_no_more_than_the_texts_that_left_since() -> None:
    account = Account(LOSS, ERROR, texts=2000, phase=1, used=1)
    for _ in range(400):
        account.left(account.count, None)
    least = next(n for n in range(100_000) if replace(account, texts=n).solvent)
    for i in range(12):
        account.left(account.count, i)
        account.left(account.count, None)
    assert account.count.since == 12
    now = next(n for n in range(100_000) if replace(account, texts=n).solvent)
    assert now == pytest.approx(least + 24 / LOSS, abs=1)
    for i in range(12):
        del account.count.pending[i]
    assert next(n for n in range(100_000) if replace(account, texts=n).solvent) == least


def test_exits_must_be_earned_by_the_answers_so_far() -> None:
    account = Account(LOSS, ERROR)
    account.phase = account.used = 1
    account.count.free = 1000
    account.texts = next(n for n in range(100_000) if replace(account, texts=n).solvent)
    assert 1000 < account.texts < 1500
    account.left(account.count, "an audited text")
    assert not account.solvent, "an audit under way counts as a disagreement"
    assert account.open, "it may end well"
    account.count.free = 3
    assert account.solvent, "only three have left that nobody checks"


@pytest.mark.parametrize("shape", ["even", "at each phase's beginning"])
def test_the_account_of_all_phases_keeps_the_tolerated_fraction_whatever_would_leave(shape: str) -> None:
    # Every text that may leave would disagree, from its phase's beginning or evenly among those that agree.
    worst = []
    for seed in range(20):
        rng, account, wrong, phase_began = np.random.default_rng(seed), Account(LOSS, ERROR), 0, 0
        for text in range(6000):
            before = account.phase
            if text % 64 == 0:
                account.advance(settled=True)
            phase_began = text if account.phase != before else phase_began
            may = account.solvent
            account.texts += 1
            disagrees = may and (text % 40 == 0 if shape == "even" else text - phase_began < 300)
            if may and rng.random() < account.share:
                account.count.wrong += disagrees
            elif may:
                account.count.free += 1
            wrong += disagrees
            worst.append((wrong / account.texts, seed))
    assert len({seed for fraction, seed in worst if fraction > LOSS}) <= 3, "5% of 20 streams, and chance"


def test_the_errors_of_the_phases_sum_to_the_whole_error() -> None:
    assert sum(phase.part for phase in PHASES) == pytest.approx(1.0)
    assert [phase.share for phase in PHASES] == sorted((phase.share for phase in PHASES), reverse=True)
    assert PHASES[-1].share <= 0.1


@pytest.mark.parametrize("loss", [0.01, 0.05])
def test_the_mean_audits_until_a_false_alarm_are_at_least_the_run_length(loss: float) -> None:
    rng, run_length, waited = np.random.default_rng(3), 100, []
    for _ in range(60):
        alarm, count = Alarm(loss, run_length), 0
        while not alarm.rung:
            alarm, count = alarm.after(bool(rng.random() < loss)), count + 1
        waited.append(count)
    assert np.mean(waited) > run_length, "at exactly the tolerated rate, the worst case"


@given(st.sampled_from([0.01, 0.1]), st.lists(st.booleans(), max_size=12), st.floats(0, 1))
@settings(max_examples=40)
def test_the_alarms_score_less_the_audits_never_rises_in_expectation(
    loss: float, before: list[bool], part: float
) -> None:
    alarm, rate = Alarm(loss, 10**12), part * loss
    for disagrees in before:
        alarm = alarm.after(disagrees)
    now = np.mean(alarm.score) if alarm.score else 0.0
    agrees, disagrees = (np.mean(alarm.after(d).score) for d in (False, True))
    assert rate * disagrees + (1 - rate) * agrees <= (now + 1) * (1 + 1e-9)


def test_the_alarm_rings_soon_after_a_drift_and_keeps_ringing() -> None:
    rng, delays = np.random.default_rng(5), []
    for _ in range(50):
        alarm = Alarm(LOSS)
        for disagrees in rng.random(1000) < 0.002:
            alarm = alarm.after(bool(disagrees))
        assert not alarm.rung
        delay = 0
        while not alarm.rung:
            alarm, delay = alarm.after(bool(rng.random() < 0.15)), delay + 1
        delays.append(delay)
        assert alarm.after(False).rung
    assert np.quantile(delays, 0.9) <= 64, "audits; texts are so many times more as the share says"


def test_the_alarm_has_no_memory_of_long_agreement_that_a_drift_must_first_undo() -> None:
    long, short = Alarm(LOSS), Alarm(LOSS)
    for _ in range(20_000):
        long = long.after(False)
    for _ in range(500):
        short = short.after(False)
    assert long.score == pytest.approx(short.score, rel=0.05)


def test_the_alarm_listens_for_rates_up_to_a_half() -> None:
    assert rates_above(LOSS).tolist() == [0.02, 0.04, 0.08, 0.16, 0.32, 0.5]
    assert rates_above(0.4).tolist() == [HIGHEST]
    assert replace(Alarm(LOSS), score=(1e300,) * 6).after(True).rung


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="audits"):
        Audits(1, 2)
    with pytest.raises(ValueError, match="gate"):
        Gate(0.0, 0.05)
    with pytest.raises(ValueError, match="alarm"):
        Alarm(0.5)
    with pytest.raises(ValueError, match="share"):
        most_disagreements(0, 0.0, 0.1)
