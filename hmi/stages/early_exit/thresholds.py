"""Threshold tuning: the thresholds that save most time on a window of recorded texts, within an error budget.

Raising a threshold never loses time (a text leaves no later than before). It may raise or lower the
agreement: a text that left wrongly at a late ramp may leave rightly at an earlier one. Apparate (section 3.2)
assumes that agreement falls with each threshold, which is not so, and nothing here assumes it.

- `climb` is Apparate's greedy search (Algorithm 1).
- `best` is exact over all real thresholds. It deals the allowed errors out among the ramps.
- `tune` uses `best`. Where there are too many ways to deal, it deals errors out by the handful, and takes
  the result of `climb` if that saves more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import comb, floor

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hmi.model.tenant.calibration import Floats
from hmi.stages.early_exit.account import AUDITED
from hmi.stages.early_exit.ramps import Costs, saved_s
from hmi.stages.early_exit.rule import checked

MOST = 3
"""The most ramps in use at once. On the deep root a third one saves 2 to 5% of the layers' time more than
Apparate's two, a fourth one about 1%."""
_DEALS = 4
"""The parts into which the allowed errors are dealt out while sets of ramps are compared."""
_RATES = (0.0, 0.1, 0.2, 0.35, 0.5, 0.75)
"""The errors on the records that the policies of a ladder are tuned with, as parts of the tolerated rate. The
search picks what looks best, so a policy's true rate is higher than the one on the records."""
_MIDDLE = 0.5
"""The errors that a ladder's ramps are chosen with, in the same unit."""
_PARTS = (0.25, 0.5, 0.75)
"""The most careful policies of a ladder: they let this part of the early texts of the tuned one leave, the
surest. They give up little, and their gates open sooner."""


@dataclass(frozen=True)
class _ThresholdChoice:
    """Thresholds for all ramps, 0 for those that are not in use."""

    thresholds: tuple[float, ...]
    net_s: float
    """The mean seconds that a text saves on the records, less all that the stage costs (`worth`)."""


def ladder_of(
    uncertainty: Floats, agrees: NDArray[np.bool_], costs: Costs, loss: float, most: int = MOST
) -> tuple[_ThresholdChoice, ...]:
    """Policies for these records from careful to bold. They have the same ramps.

    Apparate tries ramps one after another, since it sees only the active ones. An audit here evaluates all
    ramps, so records tell what any set of them would have saved.

    The arrays are [texts, ramps]; `costs` has one time for each ramp. loss: the tolerated rate. () if no ramp
    saves more than it takes.
    """
    texts = len(agrees)
    active = ramps_of(uncertainty, agrees, costs, int(texts * loss * _MIDDLE), most)
    if not active:
        return ()
    window = _window(uncertainty, agrees, costs, active)
    errors = sorted({int(texts * loss * rate) for rate in _RATES})
    found = [tune(window, allowed).thresholds.tolist() for allowed in errors]
    of = [dict(zip(active, thresholds, strict=True)) for thresholds in found]
    tuned = [tuple(each.get(ramp, 0.0) for ramp in range(len(costs.layer_s))) for each in of]
    careful = [_thresholds_for_part(uncertainty, tuned[0], part) for part in _PARTS]
    return tuple(_ThresholdChoice(one, net_of(uncertainty, agrees, costs, one)) for one in (*careful, *tuned))


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
    return worth(costs, active, best(window, allowed, max(1, -(-allowed // _DEALS))).saved_s)


def _window(uncertainty: Floats, agrees: NDArray[np.bool_], costs: Costs, active: Sequence[int]) -> Window:
    of = list(active)
    return Window(uncertainty[:, of], agrees[:, of], np.array(saved_s(costs, of)))


def _thresholds_for_part(uncertainty: Floats, thresholds: Sequence[float], part: float) -> tuple[float, ...]:
    """Thresholds that let this part of the texts leave at each ramp that would leave there by itself."""
    low = [u[u < t] for u, t in zip(uncertainty.T, thresholds, strict=True)]
    return tuple(float(np.quantile(u, part)) if len(u) else 0.0 for u in low)


FIRST_STEP, SMALLEST_STEP = 0.1, 0.01
"""Apparate's step sizes of thresholds."""
MAX_DEALS = 300
"""The most divisions of the allowed errors among ramps that `tune` tries exactly. Each takes some 0.1 ms."""


@dataclass(frozen=True)
class Window:
    """Recorded texts that ran to the end, with what each active ramp would have answered."""

    uncertainty: Floats
    """[texts, ramps]"""
    agrees: NDArray[np.bool_]
    """[texts, ramps]: whether the ramp's whole answer equals the full model's."""
    saved_s: Floats
    """[ramps]: the seconds that an exit at the ramp avoids: later layers, and ramps before them."""

    def __post_init__(self) -> None:
        shape = self.uncertainty.shape
        if len(shape) != 2 or self.agrees.shape != shape or self.saved_s.shape != shape[1:]:
            raise ValueError(
                f"window: uncertainty {shape}, agrees {self.agrees.shape} and saved_s {self.saved_s.shape} "
                "must be [texts, ramps] twice and [ramps]"
            )
        if (np.diff(self.saved_s) > 0).any() or (self.saved_s < 0).any():
            raise ValueError("saved_s: a later exit cannot save more, nor less than nothing")


@dataclass(frozen=True)
class Tuned:
    """Thresholds, and their effect on the window they were tuned on."""

    thresholds: Floats
    """[ramps]"""
    saved_s: float
    """The mean seconds saved for a text."""
    errors: int
    """The texts that would leave with another answer than the full model's."""
    evaluations: int
    """The number of settings that the search evaluated."""


def allowed_errors(texts: int, loss: float) -> int:
    """Return the most errors among `texts` texts that keep the fraction of errors within `loss`.

    16 texts at 1% allow none, so Apparate's window cannot see whether a setting errs at .9% or at 0.1%.
    """
    if not 0.0 <= loss <= 1.0:
        raise ValueError(f"loss: {loss} is not a fraction from 0 to 1")
    return floor(texts * loss + 1e-9)


def evaluate(window: Window, thresholds: ArrayLike) -> tuple[Floats, NDArray[np.int64]]:
    """The mean seconds saved and the errors under each setting: [settings, ramps] -> [settings] twice."""
    t = np.asarray(thresholds, np.float64)
    texts, ramps = window.uncertainty.shape
    out = np.ones((len(t), texts, ramps + 1), np.bool_)
    np.less(window.uncertainty, t[:, None, :], out=out[:, :, :ramps])
    index = out.argmax(-1)
    saved = np.append(window.saved_s, 0.0)[index].sum(-1) / max(1, texts)
    wrong = np.concatenate([~window.agrees, np.zeros((texts, 1), np.bool_)], 1)
    return saved, wrong[np.arange(texts), index].sum(-1)


def tune(window: Window, allowed: int) -> Tuned:
    """The thresholds that save most with at most `allowed` errors on the window, exactly or nearly so."""
    unit, others = 1, max(0, window.uncertainty.shape[1] - 1)
    while comb(-(-allowed // unit) + others, others) > MAX_DEALS:
        unit += 1
    found = best(window, allowed, unit)
    if unit == 1:
        return found
    climbed = climb(window, allowed)
    evaluations = found.evaluations + climbed.evaluations
    return replace(max(found, climbed, key=lambda tuned: tuned.saved_s), evaluations=evaluations)


def climb(
    window: Window, allowed: int, first_step: float = FIRST_STEP, smallest_step: float = SMALLEST_STEP
) -> Tuned:
    """Apparate's greedy search. Every threshold starts at 0; each round raises one by its own step.

    The round's ramp is the one whose step saves most seconds per added error. Its next step is twice as
    large. A ramp whose step would break the budget halves its step. The search ends when every ramp is at 1
    or breaks the budget with its smallest step. Unlike the printed Algorithm 1, steps start large, as the
    text says, and ramps without a gain wait until no ramp gains.
    """
    ramps = window.uncertainty.shape[1]
    at, steps, evaluations = np.zeros(ramps), np.full(ramps, first_step), 0
    saved, errors = 0.0, 0
    while True:
        low = np.flatnonzero(at < 1.0)
        moves = np.repeat(at[None], len(low), 0)
        moves[np.arange(len(low)), low] = np.minimum(at[low] + steps[low], 1.0)
        then_saved, then_errors = evaluate(window, moves)
        evaluations += len(low)
        fits = then_errors <= allowed
        too_far = low[~fits]
        stuck = bool((steps[too_far] <= smallest_step).all())
        steps[too_far] = np.maximum(steps[too_far] / 2, smallest_step)
        if fits.any():
            pick = _best_move(then_saved - saved, then_errors - errors, fits)
            at, saved, errors = moves[pick], float(then_saved[pick]), int(then_errors[pick])
            steps[low[pick]] *= 2
        elif stuck:
            return Tuned(at, saved, errors, evaluations)


def _best_move(gain: Floats, added: NDArray[np.int64], fits: NDArray[np.bool_]) -> int:
    """The move with the most seconds per added error; those that add none come first, by seconds."""
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.where(gain <= 0.0, 0.0, np.where(added <= 0, np.inf, gain / added))
    order = np.lexsort((gain, rate, fits))
    return int(order[-1])


def best(window: Window, allowed: int, unit: int = 1) -> Tuned:
    """The best of all real thresholds, exactly if `unit` is 1.

    Let the ramps before a ramp be set. Raising its threshold past texts that it answers rightly saves time,
    and takes texts from later ramps, which can only lower their errors. So of all thresholds with e errors at
    the ramp, the highest is at least as good as any other. Hence it is enough to try every way to deal the
    allowed errors out among the ramps, and the last ramp takes all that are left. With a larger `unit`, of
    the thresholds with 1 to `unit` errors, `unit` + 1 to 2·`unit` and so on only the highest of each are
    tried.
    """
    texts, ramps = window.uncertainty.shape
    found = Tuned(np.zeros(ramps), 0.0, 0, 0)
    evaluations = 0
    for thresholds, saved, errors in _deals(window, np.arange(texts), 0, allowed, unit):
        evaluations += 1
        if saved > found.saved_s * max(1, texts):
            found = Tuned(np.array(thresholds), saved / max(1, texts), errors, 0)
    return Tuned(checked(found.thresholds), found.saved_s, found.errors, evaluations)


def _deals(
    window: Window, left: NDArray[np.int64], ramp: int, allowed: int, unit: int
) -> Iterator[tuple[list[float], float, int]]:
    """Every way to deal out errors among the ramps from `ramp` on, for the texts that are left.

    Yields the thresholds of these ramps, the seconds that they save together, and their errors.
    """
    if ramp == window.uncertainty.shape[1]:
        yield [], 0.0, 0
        return
    u = window.uncertainty[left, ramp]
    order = np.argsort(u, kind="stable")
    ends = _ends(u[order], ~window.agrees[left[order], ramp], allowed, unit)
    last = ramp + 1 == window.uncertainty.shape[1]
    for end, errors in ends[-1:] if last else ends:
        threshold, saved = _threshold_after(u[order], end), end * float(window.saved_s[ramp])
        for rest, more_s, more_errors in _deals(window, left[order[end:]], ramp + 1, allowed - errors, unit):
            yield [threshold, *rest], saved + more_s, errors + more_errors


def _ends(u: Floats, wrong: NDArray[np.bool_], allowed: int, unit: int) -> list[tuple[int, int]]:
    """Return the numbers of texts that may leave, in order of uncertainty, and the errors that each number
    makes.

    Texts of equal uncertainty leave together. A text of uncertainty 1 or NaN cannot leave. Each number of
    errors, up to the next multiple of `unit`, appears once, with the most texts.
    """
    u = u[: np.searchsorted(u, 1.0)]
    cuts = np.flatnonzero(np.append(np.diff(u) > 0, [True] * min(1, len(u)))) + 1
    errors: NDArray[np.int64] = np.cumsum(wrong, dtype=np.int64)[cuts - 1]
    ends, errors = np.append(0, cuts[errors <= allowed]), np.append(0, errors[errors <= allowed])
    groups: NDArray[np.int64] = (errors + unit - 1) // unit
    last = np.flatnonzero(np.append(np.diff(groups), 1))
    return list(zip(ends[last].tolist(), errors[last].tolist(), strict=True))


def _threshold_after(u: Floats, end: int) -> float:
    """A threshold that lets the first `end` texts leave and no other: halfway to the next uncertainty.

    With no text beyond, it is the next number above the last, so nothing less certain than what was recorded
    ever leaves.
    """
    if end == 0:
        return 0.0
    low = float(u[end - 1])
    high = float(u[end]) if end < len(u) else low
    middle = low + (high - low) / 2
    return float(np.nextafter(low, 2.0)) if np.isnan(middle) or middle <= low else min(middle, 1.0)
