"""The choice of ramps and their thresholds together, from records that hold every ramp.

Apparate tries ramps one after another, since it sees only the active ones. An audit here evaluates all ramps,
so records tell what any set of them would have saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hmi.model.tenant.calibration import Floats
from hmi.stages.early_exit.account import AUDITED
from hmi.stages.early_exit.ramps import Costs, saved_s
from hmi.stages.early_exit.thresholds import Window, best, evaluate, tune

MOST = 3
"""The most ramps in use at once. On the deep root a third one saves 2 to 5% of the layers' time more than
Apparate's two, a fourth one about 1%."""
DEALS = 4
"""The parts into which the allowed errors are dealt out while sets of ramps are compared."""
RATES = (0.0, 0.1, 0.2, 0.35, 0.5, 0.75)
"""The errors on the records that the policies of a ladder are tuned with, as parts of the tolerated rate. The
search picks what looks best, so a policy's true rate is higher than the one on the records."""
MIDDLE = 0.5
"""The errors that a ladder's ramps are chosen with, in the same unit."""
PARTS = (0.25, 0.5, 0.75)
"""The most careful policies of a ladder: they let this part of the early texts of the tuned one leave, the
surest. They give up little, and their gates open sooner."""


@dataclass(frozen=True)
class ThresholdChoice:
    """Thresholds for all ramps, 0 for those that are not in use."""

    thresholds: tuple[float, ...]
    net_s: float
    """The mean seconds that a text saves on the records, less all that the stage costs (`worth`)."""


def ladder(
    uncertainty: Floats, agrees: NDArray[np.bool_], costs: Costs, loss: float, most: int = MOST
) -> tuple[ThresholdChoice, ...]:
    """Policies for these records from careful to bold. They have the same ramps.

    The arrays are [texts, ramps]; `costs` has one time for each ramp. loss: the tolerated rate. () if no ramp
    saves more than it takes.
    """
    texts = len(agrees)
    active = ramps_of(uncertainty, agrees, costs, int(texts * loss * MIDDLE), most)
    if not active:
        return ()
    window = _window(uncertainty, agrees, costs, active)
    errors = sorted({int(texts * loss * rate) for rate in RATES})
    found = [tune(window, allowed).thresholds.tolist() for allowed in errors]
    of = [dict(zip(active, thresholds, strict=True)) for thresholds in found]
    tuned = [tuple(each.get(ramp, 0.0) for ramp in range(len(costs.layer_s))) for each in of]
    careful = [_thresholds_for_part(uncertainty, tuned[0], part) for part in PARTS]
    return tuple(ThresholdChoice(one, net_of(uncertainty, agrees, costs, one)) for one in (*careful, *tuned))


def ramps_of(
    uncertainty: Floats, agrees: NDArray[np.bool_], costs: Costs, allowed: int, most: int = MOST
) -> tuple[int, ...]:
    """The ramps that save most on these records with at most `allowed` errors, ascending.

    Ramps are added one by one, each time the one that saves most, while that saves more than none.
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
    return active


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


def _thresholds_for_part(uncertainty: Floats, thresholds: Sequence[float], part: float) -> tuple[float, ...]:
    """Thresholds that let this part of the texts leave at each ramp that would leave there by itself."""
    low = [u[u < t] for u, t in zip(uncertainty.T, thresholds, strict=True)]
    return tuple(float(np.quantile(u, part)) if len(u) else 0.0 for u in low)
