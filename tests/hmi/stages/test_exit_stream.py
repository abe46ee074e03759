"""Exits over whole synthetic streams: drift, ramps that know nothing, static thresholds (design/0012)."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import pytest

from hmi.core import MIN_AGREEMENT
from hmi.stages.draw import draw
from hmi.stages.early_exit.control import Control, ExitBounds, Recorded
from hmi.stages.early_exit.ramps import Costs
from hmi.stages.early_exit.rule import exit_index
from hmi.stages.early_exit.thresholds import Window, allowed_errors, tune

TERMS = ExitBounds()
COSTS = Costs((2e-3, 1e-3), (1e-5, 1e-5))
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


def new(others: list[Recorded] | None = None, costs: Costs = COSTS) -> Control:
    return Control(lambda: costs, TERMS, others or [])


def served(stream: Stream, control: Control, name: str) -> Run:
    left, wrong, alarms = [], [], []
    for i, (u, agrees) in enumerate(zip(stream.u, stream.agrees, strict=True)):
        begun = control.begin(draw("audit", f"{name}-{i}"))
        index = len(agrees) if begun is None else int(exit_index(u[None], begun.thresholds)[0])
        goes = begun is not None and index < len(agrees) and control.leave(begun, index)
        left.append(goes)
        wrong.append(goes and not agrees[index])
        alarms.append(control.alarms)
        if begun is not None and begun.recorded:
            control.record(u, agrees, begun)
        elif begun is not None and not goes:
            control.stay()
    return Run(np.array(left), np.array(wrong), np.array(alarms))


@pytest.mark.parametrize("seed", range(2))
def test_on_a_stream_that_drifts_midway_agreement_stays_99_percent_and_the_alarm_rings_within_a_window(
    seed: int,
) -> None:
    half = 4000
    stream = easy(half, seed).then(drifted(half, seed + 50))
    run = served(stream, new(), f"drift {seed}")
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
    run = served(stream, new(), "return")
    assert run.left[-1000:].mean() > 0.25
    assert run.alarms[-1] >= 1
    assert run.share_wrong().max() <= TERMS.loss


def test_ramps_taught_on_shuffled_answers_let_about_nothing_leave() -> None:
    run = served(shuffled(4000, 4), new(), "shuffled")
    assert run.left.mean() < 0.001


def test_a_tenant_who_disagrees_is_not_let_through_by_others_records() -> None:
    others = easy(2000, 9)
    control = new([(others.u, others.agrees)])
    run = served(shuffled(3000, 5), control, "pooled")
    assert control.policies >= 1, "others' records chose a policy"
    assert run.left.sum() == 0


def test_others_records_choose_a_policy_before_the_tenant_has_a_window_of_its_own() -> None:
    others, stream = easy(2000, 9), easy(4000, 6)
    helped, alone = new([(others.u, others.agrees)]), new()
    for control in (helped, alone):
        begun = control.begin(0.0)
        assert begun is not None
        control.record(stream.u[0], stream.agrees[0], begun)
        assert not any(control.thresholds)
    assert helped.policies > alone.policies == 0
    run = served(stream, helped, "helped")
    assert run.share_wrong().max() <= TERMS.loss
    assert not run.left[:350].any(), "the gate waits for the tenant's own audits"
    assert run.left[:900].any()


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_the_first_text_leaves_after_a_thousand_and_fewer_are_audited_in_the_end(seed: int) -> None:
    control = new()
    run = served(easy(14_000, seed), control, f"speed {seed}")
    assert not run.left[: TERMS.window + 300].any(), "nothing leaves before there is evidence"
    assert run.left[:1000].any()
    assert run.left[1200:2000].mean() > 0.3, "audited texts leave, too"
    assert run.left[-1000:].mean() > 0.45
    assert control.account.phase > 0
    assert run.share_wrong().max() <= TERMS.loss


def test_an_early_answer_under_way_counts_as_a_disagreement_until_it_is_compared() -> None:
    control, stream = new(), easy(4000, 1)
    assert served(stream, control, "under way").left[-1000:].any()
    before, begun = control.thresholds, []
    while True:
        one = control.begin(0.0)
        assert one is not None
        if not control.leave(one, 0):
            break
        begun.append(one)
    assert 0 < len(begun) < 50, "more early answers at once than the stream has earned"
    assert control.thresholds == before, "later texts may leave once these have been compared"
    control.record((0.0, 0.0), (True, True), begun.pop())
    assert control.leave(one, 0)
    control.abandon(one)
    control.abandon(begun.pop())
    assert control.account.count.wrong >= 2, "answered early, and never compared"
    for other in begun:
        control.record((0.0, 0.0), (False, True), other)
    assert not any(control.thresholds), "they were wrong"


def test_texts_under_way_earn_nothing_before_they_have_their_answers() -> None:
    control = new()
    served(easy(4000, 1), control, "many under way")
    begun = [one for _ in range(4000) if (one := control.begin(0.0)) is not None]
    left = sum(control.leave(one, 0) for one in begun)
    assert 0 < left <= TERMS.loss * (4000 + left), "all of them may disagree, and be the only new answers"


def test_texts_that_are_given_back_leave_the_account_as_it_was() -> None:
    control = new()
    served(easy(4000, 1), control, "given back")
    control.account.used, control.account.texts = 1, 100_001
    before = copy.deepcopy(control.account)
    for draw_of in (0.0, 0.999):
        begun = control.begin(draw_of)
        assert begun is not None
        assert begun.audited is (draw_of == 0.0)
        assert control.account != before
        control.abandon(begun)
        assert control.account == before


def test_ramps_that_cost_more_than_they_save_switch_the_control_off() -> None:
    dear = Costs((2e-3, 1e-3), (3e-3, 3e-3))
    control = new(costs=dear)
    run = served(easy(1000, 1), control, "dear")
    assert control.state == "off"
    assert not run.left.any()
    assert control.begin(0.5) is None, "no ramp is asked any more"


def test_a_policy_in_force_that_begins_to_lose_time_is_given_up() -> None:
    costs = [COSTS]
    control = Control(lambda: costs[0], TERMS)
    assert served(easy(3000, 1), control, "cheap").left[-500:].any()
    costs[0] = Costs((2e-3, 1e-3), (3e-3, 3e-3))
    assert not served(easy(12_000, 2), control, "dear").left[-500:].any()
    assert control.state == "off"


def test_the_dearer_of_two_ramps_that_help_alike_is_not_used() -> None:
    control = new(costs=Costs((1e-5, 3e-3), (1e-3, 1e-5)))
    served(easy(3000, 1), control, "dearer")
    assert control.present is not None
    assert control.present.thresholds[0] == 0.0 < control.present.thresholds[1]


def test_the_least_agreement_is_one_that_all_parts_of_the_control_take() -> None:
    control = Control(lambda: COSTS, ExitBounds(loss=1.0 - MIN_AGREEMENT))
    run = served(easy(2000, 7).then(shuffled(500, 7)), control, "least")
    assert run.left.any()
    assert control.audits.seen
    assert run.share_wrong()[-1] <= 1.0 - MIN_AGREEMENT
