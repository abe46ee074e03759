"""Policies from careful to bold: their order, their gates, and the error of them all."""

from __future__ import annotations

import numpy as np
import pytest

from hmi.stages.early_exit.evidence import Gate, least_audits
from hmi.stages.early_exit.ladder import PolicyTests
from hmi.stages.early_exit.ramps import Costs
from hmi.stages.early_exit.rule import errs, exit_index
from hmi.stages.early_exit.thresholds import MOST, ladder_of

LOSS, ERROR = 0.01, 0.05
COSTS = Costs((2e-3, 1e-3, 1e-3), (1e-5,) * 3)


def records(texts: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    u = rng.beta(0.5, 1.2, (texts, 3))
    return u, rng.random((texts, 3)) > 0.001 + 0.3 * np.clip(u - 0.2, 0, 1)


def test_the_policies_of_a_ladder_let_more_texts_leave_with_each_step_within_the_tolerated_errors() -> None:
    u, agrees = records(2048, 0)
    found = ladder_of(u, agrees, COSTS, LOSS)
    index = [exit_index(u, one.thresholds) for one in found]
    left = [int((i < 3).sum()) for i in index]
    wrong = [int((~agrees[np.flatnonzero(i < 3), i[i < 3]]).sum()) for i in index]
    assert len(found) > 5
    assert [one.net_s for one in found] == sorted(one.net_s for one in found)
    assert left[0] < left[-1]
    assert wrong[:4] == [0, 0, 0, 0], "parts of the policy without an error, and that one"
    assert all(n <= 0.75 * LOSS * 2048 for n in wrong)
    used = [{ramp for ramp, threshold in enumerate(one.thresholds) if threshold} for one in found]
    assert all(len(ramps) <= MOST for ramps in used)


def test_ramps_that_cost_more_than_they_save_have_no_ladder() -> None:
    assert ladder_of(*records(512, 0), Costs((1e-3,) * 3, (1e-2,) * 3), LOSS) == ()


def test_a_gate_opens_once_its_own_audits_suffice_and_those_before_it_are_open() -> None:
    rungs = PolicyTests(((0.1,), (0.5,), (0.9,)), LOSS, ERROR)
    gates = [Gate(LOSS, ERROR) for _ in rungs.rungs]
    rng = np.random.default_rng(2)
    for i in range(3000):
        u, right = [float(rng.random())], [bool(rng.random() > 0.002)]
        if i == 5:
            u, right = [0.05], [False]  # an error of all three, so that the second is open before the first
        rungs.test(u, right)
        gates = [g.after(errs(u, right, t)) for g, t in zip(gates, rungs.rungs, strict=True)]
        opened = next((n for n, gate in enumerate(gates) if not gate.open), len(gates))
        assert rungs.opened == opened
    assert rungs.opened == 3
    assert rungs.top == (0.9,)
    assert rungs.done


def test_a_careful_policy_that_fails_keeps_the_bold_ones_closed() -> None:
    rungs = PolicyTests(((0.1,), (0.5,)), LOSS, ERROR)
    rungs.wrong[0] = 10**6
    for _ in range(1000):
        rungs.test([0.3], [True])
    assert rungs.seen >= least_audits(0, LOSS, ERROR), "the bold one has its evidence"
    assert rungs.opened == 0
    assert rungs.top is None


@pytest.mark.parametrize("error", [0.1])
def test_the_error_of_a_ladder_is_that_of_one_policy_however_many_it_has(error: float) -> None:
    opened = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        rungs = PolicyTests(tuple((0.1 * i,) for i in range(1, 9)), LOSS, error)
        for u, wrong in zip(rng.random(1500), rng.random(1500) < 0.025, strict=True):
            rungs.test([u], [not wrong])  # the first three are within the tolerated rate, or nearly so
        opened += rungs.opened > 3
    assert opened <= 200 * error


def test_least_audits_are_those_at_which_a_gate_opens() -> None:
    for disagreed in (0, 1, 4):
        gate = Gate(LOSS, ERROR)
        for i in range(least_audits(disagreed, LOSS, ERROR)):
            assert not gate.open
            gate = gate.after(i < disagreed)
        assert gate.open
