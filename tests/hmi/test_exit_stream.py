"""Exits over whole synthetic streams: drift, ramps that know nothing, static thresholds (design/0012)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from hmi.stages.draw import draw
from hmi.stages.early_exit.control import Control, Terms
from hmi.stages.early_exit.rule import exit_index
from hmi.stages.early_exit.thresholds import Window, allowed_errors, tune

TERMS = Terms()
SAVED_S = (3e-3, 1e-3)


@dataclass(frozen=True)
class Stream:
    """Two arrays [texts, ramps]: each ramp's uncertainty, and whether its answer agrees."""

    u: np.ndarray
    agrees: np.ndarray

    def then(self, other: Stream) -> Stream:
        return Stream(np.concatenate([self.u, other.u]), np.concatenate([self.agrees, other.agrees]))


@dataclass(frozen=True)
class Run:
    """The outcome of each text."""

    left: np.ndarray
    """bool [texts]"""
    wrong: np.ndarray
    """bool [texts]"""
    alarms: np.ndarray
    """int [texts]: how many there had been."""

    def share_wrong(self) -> np.ndarray:
        """The fraction of disagreements of the stream up to each text."""
        return self.wrong.cumsum() / np.arange(1, len(self.wrong) + 1)


def easy(texts: int, seed: int) -> Stream:
    """Sure ramps are nearly always right."""
    rng = np.random.default_rng(seed)
    u = np.clip(rng.beta(0.5, 1.2, (texts, 1)) * rng.uniform(0.6, 1, (texts, 2)), 0, 1)
    return Stream(u, rng.random((texts, 2)) > 0.001 + 0.5 * np.clip(u - 0.25, 0, 1))


def drifted(texts: int, seed: int) -> Stream:
    """Ramps are as sure as before, and wrong in a sixth of the texts."""
    rng = np.random.default_rng(seed)
    return Stream(easy(texts, seed).u, rng.random((texts, 2)) > 0.17)


def shuffled(texts: int, seed: int) -> Stream:
    """Ramps that were taught shuffled answers: now and then sure, right one time in four."""
    rng = np.random.default_rng(seed)
    return Stream(rng.beta(2, 2, (texts, 2)), rng.random((texts, 2)) < 0.25)


def served(stream: Stream, control: Control, name: str, share: float = TERMS.share) -> Run:
    left, wrong, alarms = [], [], []
    for i, (u, agrees) in enumerate(zip(stream.u, stream.agrees, strict=True)):
        audited = draw("audit", f"{name}-{i}") < share
        thresholds = control.begin(audited)
        index = int(exit_index(u[None], thresholds)[0])
        left.append(index < len(agrees))
        wrong.append(index < len(agrees) and not agrees[index])
        alarms.append(control.alarms)
        if audited or not any(thresholds):
            control.record(u, agrees, thresholds, audited=audited)
    return Run(np.array(left), np.array(wrong), np.array(alarms))


@pytest.mark.parametrize("seed", range(2))
def test_on_a_stream_that_drifts_midway_agreement_stays_99_percent_and_the_alarm_rings_within_a_window(
    seed: int,
) -> None:
    half = 4000
    stream = easy(half, seed).then(drifted(half, seed + 50))
    run = served(stream, Control(SAVED_S, TERMS), f"drift {seed}")
    assert run.left[half - 1500 : half].mean() > 0.25, "exits pay before the drift"
    assert run.share_wrong().max() <= TERMS.loss
    assert run.alarms[half - 1] == 0, "no alarm before the drift"
    assert run.alarms[half + TERMS.window] >= 1, "it rang within one window"
    assert not run.left[half + TERMS.window :].any(), "no policy holds on this half"


def test_static_thresholds_fail_after_the_drift() -> None:
    half = 6000
    stream = easy(half, 0).then(drifted(half, 50))
    first = Window(stream.u[: TERMS.window], stream.agrees[: TERMS.window], np.array(SAVED_S))
    tuned = tune(first, allowed_errors(TERMS.window, TERMS.loss / 4))
    index = exit_index(stream.u, tuned.thresholds)
    gone = index < 2
    right = np.where(gone, stream.agrees[np.arange(2 * half), np.minimum(index, 1)], True)
    assert right[:half].mean() > 0.99
    assert right[half:].mean() < 0.95
    assert right.mean() < 0.99


def test_exits_return_with_a_new_policy_after_the_stream_has_settled() -> None:
    stream = easy(4000, 1).then(drifted(600, 2)).then(easy(6000, 3))
    run = served(stream, Control(SAVED_S, TERMS), "return")
    assert run.left[-1000:].mean() > 0.25
    assert run.alarms[-1] >= 1
    assert run.share_wrong().max() <= TERMS.loss


def test_ramps_taught_on_shuffled_answers_let_about_nothing_leave() -> None:
    run = served(shuffled(4000, 4), Control(SAVED_S, TERMS), "shuffled")
    assert run.left.mean() < 0.001


def test_a_tenant_who_disagrees_is_not_let_through_by_others_records() -> None:
    others = easy(2000, 9)
    pool = [Window(others.u, others.agrees, np.array(SAVED_S))]
    # With every text audited the stream is solvent after 200 texts, so the gate alone holds them back.
    control = Control(SAVED_S, replace(TERMS, share=1.0), pool)
    run = served(shuffled(3000, 5), control, "pooled", share=1.0)
    assert control.policies >= 1, "others' records chose a policy"
    assert run.left.sum() == 0


def test_others_records_choose_a_policy_before_the_tenant_has_a_window_of_its_own() -> None:
    others, stream = easy(2000, 9), easy(4000, 6)
    helped = Control(SAVED_S, TERMS, [Window(others.u, others.agrees, np.array(SAVED_S))])
    alone = Control(SAVED_S, TERMS)
    for control in (helped, alone):
        control.record(stream.u[0], stream.agrees[0], control.begin(True), audited=True)
        assert not any(control.thresholds)
    assert (helped.policies, alone.policies) == (1, 0)
    assert served(stream, helped, "helped").share_wrong().max() <= TERMS.loss


def test_nothing_leaves_before_there_is_evidence() -> None:
    run = served(easy(3000, 7), Control(SAVED_S, TERMS), "early")
    assert not run.left[: TERMS.window + 300].any()
    assert run.left.any()


def test_an_audit_under_way_counts_as_a_disagreement_until_it_is_reported() -> None:
    control, stream = Control(SAVED_S, TERMS), easy(4000, 1)
    assert served(stream, control, "under way").left[-1000:].any()
    before = control.thresholds
    assert any(before)
    begun = 0
    while any(control.thresholds):
        thresholds, begun = control.begin(True), begun + 1
    assert 0 < begun < 50, "more audits at once than the stream has earned"
    control.abandon(thresholds, audited=True)
    assert control.thresholds == before
    for _ in range(begun - 1):
        control.record((1.0, 1.0), (True, True), thresholds, audited=True)
    assert control.thresholds == before


def test_the_gate_waits_for_the_tenants_own_audits_although_others_chose_the_policy() -> None:
    others = easy(2000, 9)
    pool = [Window(others.u, others.agrees, np.array(SAVED_S))]
    control = Control(SAVED_S, replace(TERMS, share=1.0), pool)
    run = served(easy(1200, 8), control, "own", share=1.0)
    # The stream is solvent after 200 texts; 400 agreeing audits are the least that the gate needs.
    assert not run.left[:400].any()
