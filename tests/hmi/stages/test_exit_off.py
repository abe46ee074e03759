"""Exits that do not pay: they switch themselves off, and then nothing is done for their texts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from hmi.core import ModelId, Objective
from hmi.execution.batch import BatchKey, Rows
from hmi.stages.base import StageBatch
from hmi.stages.early_exit import control as control_module
from hmi.stages.early_exit.account import AUDITED
from hmi.stages.early_exit.control import Control, ExitBounds
from hmi.stages.early_exit.costs import ExitCosts
from hmi.stages.early_exit.hook import ExitHook
from hmi.stages.early_exit.ramps import Costs
from hmi.stages.early_exit.stage import ON, EarlyExit
from hmi.stages.early_exit.thresholds import ladder_of, net_of

TERMS = ExitBounds()
LAYERS = (1e-3, 1e-3)
KEY = BatchKey(("r", "v1"), "cls", False)


def rows(texts: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Texts of which a third are sure at both ramps, and then right."""
    rng = np.random.default_rng(seed)
    for sure in rng.random(texts) < 1 / 3:
        yield np.array([0.01 if sure else 0.9] * 2), np.array([sure or rng.random() < 0.5] * 2)


def served(control: Control, texts: int, seed: int = 0) -> None:
    for u, agrees in rows(texts, seed):
        if control.skip(1):
            continue
        begun = control.begin(0.99)  # no audit
        assert begun is not None
        if begun.recorded:
            control.record(u, agrees, begun)
        else:
            control.stay()


@pytest.mark.parametrize(
    "costs",
    [Costs(LAYERS, (7e-4, 7e-4)), Costs(LAYERS, (1e-6, 1e-6), fixed_s=7e-4)],
    ids=["dear ramps", "dear besides"],
)
def test_exits_that_cost_more_than_they_save_end_off(costs: Costs) -> None:
    control = Control(lambda: costs, TERMS)
    served(control, TERMS.window)
    assert control.state == "off"
    assert control.policies == 0
    cheap = Control(lambda: Costs(LAYERS, (1e-6, 1e-6)), TERMS)
    served(cheap, TERMS.window)
    assert cheap.state == "testing", "the same texts would pay"


def test_a_control_that_is_off_tries_one_window_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_module, "RETRY", 1000)
    costs = [Costs(LAYERS, (7e-4, 7e-4))]
    control = Control(lambda: costs[0], TERMS)
    served(control, TERMS.window + 1000)
    assert control.state == "off"
    assert control.account.texts == TERMS.window
    assert control.skipped == 1000
    served(control, TERMS.window)
    assert control.state == "off", "one window sufficed"
    costs[0] = Costs(LAYERS, (1e-6, 1e-6))
    served(control, 1000 + TERMS.window)
    assert control.state == "testing"


def test_a_policy_in_force_that_comes_to_cost_more_than_it_saves_is_given_up() -> None:
    costs = [Costs(LAYERS, (1e-6, 1e-6))]
    control = Control(lambda: costs[0], TERMS)
    served(control, 1200)
    assert control.state == "open"
    costs[0] = Costs(LAYERS, (1e-6, 1e-6), fixed_s=7e-4)
    for u, agrees in rows(2 * TERMS.window, 1):
        if not control.off:
            begun = control.begin(0.0)  # an audit
            assert begun is not None
            assert begun.recorded
            control.record(u, agrees, begun)
    assert control.state == "off"


def test_what_a_policy_saves_is_net_of_everything_that_a_text_pays() -> None:
    costs = Costs((3e-3, 1e-3), (1e-4, 2e-4), fixed_s=5e-5)
    u, agrees = np.array([[0.1, 0.1], [0.9, 0.1], [0.9, 0.9], [0.9, 0.9]]), np.ones((4, 2), np.bool_)
    thresholds = (0.5, 0.5)
    spent = 0.0
    for row in u:  # one text after the other: audited with the probability AUDITED
        at = next((i for i in range(2) if row[i] < thresholds[i]), 2)
        free = sum(costs.ramp_s[: at + 1]) + sum(costs.layer_s[:at])
        spent += AUDITED * (sum(costs.ramp_s) + costs.full_s) + (1 - AUDITED) * free + costs.fixed_s
    assert net_of(u, agrees, costs, thresholds) == pytest.approx(costs.full_s - spent / 4)
    assert ladder_of(u, agrees, costs, 0.01)[-1].net_s >= net_of(u, agrees, costs, thresholds) - 1e-12


def test_measured_costs_hold_what_the_stage_takes_besides_ramps() -> None:
    measured = ExitCosts(KEY, 2)
    measured.took([(0, 2, 8e-3, 4)], {}, {"begin": (4e-4, 4), "record": (8e-4, 4)})
    assert measured.costs((0, 1))[0].fixed_s == pytest.approx(3e-4), "all that is known is of records"
    measured.took([], {}, {"stay": (2e-4, 4)})
    assert measured.costs((0, 1))[0].fixed_s == pytest.approx(1e-4 + AUDITED * 2e-4 + (1 - AUDITED) * 5e-5)


class Untouched:
    """Texts that must not be looked at."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("a text of a model that is off was made")


class Off:
    """The state of a model that is off."""

    agreement, texts = 0.99, 0

    def skip(self, texts: int) -> bool:
        self.texts += texts
        return True


def test_a_model_that_is_off_gets_no_hooks_and_its_texts_are_not_even_made() -> None:
    stage, state, model = EarlyExit(), Off(), ModelId("acme", "intent")
    version = type("Version", (), {"artefact": "a", "ramps": (0, 1)})()
    stage._states._held["a", model] = state  # type: ignore[assignment]
    batch = StageBatch(
        KEY,
        2,
        Untouched(),  # type: ignore[arg-type]
        lambda *_: [],
        [Objective(agreement=0.99)] * 2,
        versions=[(model, version, None)] * 2,
    )
    assert stage.hooks(ON, batch) == []
    assert state.texts == 2


class OnDevice(torch.Tensor):
    """Rows that say that they are on a device. Their outputs come back in host memory."""

    @property
    def is_cuda(self) -> bool:
        return True


def test_the_time_of_a_device_is_taken_by_one_clock() -> None:
    """The thread sleeps while a device computes, so its own time would be too short."""
    batch = StageBatch(KEY, 2, [], lambda *_: [], [])
    hook = ExitHook(batch, [], ExitCosts(KEY, 2))
    hook(0, Rows(torch.zeros(3, 4).as_subclass(OnDevice), [0, 3], [0]))
    time.sleep(0.02)
    hook.ended([0], [torch.zeros(2)])
    ((_, end, seconds, texts),) = hook._spans
    assert (end, texts) == (2, 1)
    assert 0.02 <= seconds < 60
