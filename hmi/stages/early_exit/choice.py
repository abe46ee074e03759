"""The choice of ramps and their thresholds together, from records that hold every ramp.

Apparate tries ramps one after another, since it sees only the active ones. An audit here
evaluates all ramps, so records tell what any set of them would have saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hmi.model.calibration import Floats
from hmi.stages.early_exit.account import AUDITED
from hmi.stages.early_exit.ramps import Costs, saved_s
from hmi.stages.early_exit.thresholds import Window, best, evaluate, tune

MOST = 2
"""The most ramps in use at once, as in Apparate's figures for texts. A third changed little on any stream."""
DEALS = 4
"""The parts into which the allowed errors are dealt out while sets of ramps are compared."""


@dataclass(frozen=True)
class Choice:
    """Thresholds for all ramps, 0 for those that are not in use."""

    thresholds: tuple[float, ...]
    net_s: float
    """The mean seconds that a text saves on the records, less all that the stage costs (`worth`)."""


def choose(
    uncertainty: Floats, agrees: NDArray[np.bool_], costs: Costs, allowed: int, most: int = MOST
) -> Choice:
    """The ramps and thresholds that save most on these records with at most `allowed` errors.

    The arrays are [texts, ramps]; `costs` has one time for each ramp. Ramps are added one by one, each time
    the one that saves most, while that saves more than none.
    """
    ramps = range(len(costs.layer_s))
    active, net_s = (), 0.0  # type: tuple[int, ...], float
    while len(active) < most:
        sets = [tuple(sorted({*active, ramp})) for ramp in ramps if ramp not in active]
        tried = [(_net(uncertainty, agrees, costs, one, allowed), one) for one in sets]
        found = max(tried, default=(0.0, ()))
        if found[0] <= net_s:
            break
        net_s, active = found
    if not active:
        return Choice((0.0,) * len(ramps), 0.0)
    tuned = tune(_window(uncertainty, agrees, costs, active), allowed)
    thresholds = dict(zip(active, tuned.thresholds.tolist(), strict=True))
    chosen = tuple(thresholds.get(ramp, 0.0) for ramp in ramps)
    return Choice(chosen, net_of(uncertainty, agrees, costs, chosen))


def net_of(
    uncertainty: Floats, agrees: NDArray[np.bool_], costs: Costs, thresholds: Sequence[float]
) -> float:
    """The mean seconds that a text would save under thresholds for all ramps. The arrays are as above."""
    active = tuple(i for i, threshold in enumerate(thresholds) if threshold > 0.0)
    if not active:
        return 0.0
    window = _window(uncertainty, agrees, costs, active)
    saved, _ = evaluate(window, [[thresholds[i] for i in active]])
    return worth(costs, active, float(saved[0]))


def worth(costs: Costs, active: Sequence[int], saved_s: float) -> float:
    """The mean seconds that a text saves in the long run, less all that the stage takes.

    saved_s: what it would save if none were audited. An audited text saves nothing and asks every ramp; the
    others ask the ramps in use. What the stage takes besides, each text pays.
    """
    in_use = sum(costs.ramp_s[ramp] for ramp in active)
    paid = (1.0 - AUDITED) * in_use + AUDITED * sum(costs.ramp_s) + costs.fixed_s
    return (1.0 - AUDITED) * saved_s - paid


def _net(
    uncertainty: Floats, agrees: NDArray[np.bool_], costs: Costs, active: Sequence[int], allowed: int
) -> float:
    window = _window(uncertainty, agrees, costs, active)
    return worth(costs, active, best(window, allowed, max(1, -(-allowed // DEALS))).saved_s)


def _window(uncertainty: Floats, agrees: NDArray[np.bool_], costs: Costs, active: Sequence[int]) -> Window:
    of = list(active)
    return Window(uncertainty[:, of], agrees[:, of], np.array(saved_s(costs, of)))
