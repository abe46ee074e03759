"""Offline profiling of a cascade, and the choice among the candidates it finds (Tabi, section 5).

Both levels' probabilities on the same labelled texts are saved once. The scan over dispatchers needs no
further run of a model; only the scan over pruning scales does, and of the large level alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hmi.core import Offer
from hmi.model.tenant.calibration import Floats
from hmi.stages.cascade.dispatch import Dispatcher, expected, latency_quantile, share_large
from hmi.stages.cascade.ensemble import combined, weight_of

SLOPES = (2.0, 5.0, 10.0, 20.0, 50.0)
"""The values of k that are tried."""
TWENTIETHS = range(19, 0, -1)
"""The values of c that are scanned, from .95 down by .05, as whole twentieths, which do not drift."""
CAREFUL = (0.995, 0.99, 0.98, 0.97)
"""Further values of c, above those of the scan: for tenants who insist on more agreement than .95 gives."""
FIRST_SCALE, SCALE_STEP, LAST_SCALE = 0.5, 0.1, 2.0
MAX_PRUNING_LOSS = 0.02
"""The most accuracy that pruning may cost the large level."""
MARGINS = (0.2, 0.35, 0.5)
"""See `ladder`. An offer whose rate is closer to the tolerated one spends so much that most of its texts stay
audits."""
MAX_LOSS = 0.01
"""The most accuracy that an offer may lose against the large level, by the labels of the profile's rows."""
TAIL, MAX_TAIL = 0.75, 1.5
"""A quantile and a factor. A candidate is kept if this quantile of its latency is at most the factor times
that of the slowest level."""


@dataclass(frozen=True)
class Profiled:
    """Labelled texts with both levels' results."""

    small: Floats
    """[texts, labels]: calibrated probabilities."""
    large: Floats
    """[texts, labels], of the same labels in the same order; of pruned texts if the cascade prunes."""
    gold: NDArray[np.int64]
    """[texts]"""
    small_s: Floats
    """[texts]"""
    large_s: Floats
    """[texts]: the seconds that going on adds."""
    alone_s: Floats
    """[texts]: the seconds of the large level for a text that comes to it at once."""
    whole: Floats | None = None
    """[texts, labels]: the large level's of whole texts, if `large` are of pruned ones."""

    def right(self, probabilities: Floats) -> NDArray[np.bool_]:
        """True for each text whose most probable label is right."""
        out: NDArray[np.bool_] = probabilities.argmax(-1) == self.gold
        return out


@dataclass(frozen=True)
class DispatcherCandidate:
    """A dispatcher with its ensemble, and what they are expected to give."""

    dispatcher: Dispatcher
    weight: float
    """Of the large level in the ensemble."""
    accuracy: float
    seconds: float
    """The mean for a text."""
    tail_s: float
    returned: float
    """The fraction of texts that the small level answers."""
    agreement: float = 0.0
    """The fraction of answers that equal the large level's."""


def candidates(profiled: Profiled, slopes: Sequence[float] = SLOPES) -> list[DispatcherCandidate]:
    """Every candidate that is accurate and fast enough to be offered.

    For each slope, c falls from .95 in steps of .05 until the combined accuracy is surely below both levels'
    accuracies: by more than a standard error below the lower one. CAREFUL values of c are tried besides.
    Candidates whose tail exceeds the limit are left out.
    """
    levels = [float(profiled.right(level).mean()) for level in (profiled.small, profiled.large)]
    tails = [float(np.quantile(s, TAIL, method="inverted_cdf")) for s in (profiled.small_s, profiled.alone_s)]
    least = min(levels)
    least -= float(np.sqrt(least * (1.0 - least) / len(profiled.gold)))
    found = [c for slope in slopes for c in _scan(profiled, slope, least)]
    careful = (candidate(profiled, Dispatcher(c, slope)) for slope in slopes for c in CAREFUL)
    found += [c for c in careful if c.accuracy >= least]
    return [c for c in found if c.tail_s <= MAX_TAIL * max(tails)]


def candidate(profiled: Profiled, dispatcher: Dispatcher, weight: float | None = None) -> DispatcherCandidate:
    """The expected performance of one dispatcher, over its draws.

    weight: of the large level in the ensemble; None: the one that belongs to the dispatcher on these texts.
    """
    p = share_large(profiled.small.max(-1), dispatcher)
    small, large = profiled.right(profiled.small), profiled.right(profiled.large)
    weight = weight_of(small, large, p) if weight is None else weight
    both = combined(profiled.small, profiled.large, weight)
    e = expected(p, small, profiled.right(both), profiled.small_s, profiled.large_s)
    tail_s = latency_quantile(p, profiled.small_s, profiled.large_s, TAIL)
    whole = profiled.large if profiled.whole is None else profiled.whole
    said, first, last = (level.argmax(-1) for level in (whole, profiled.small, both))
    agreement = float((p * (last == said) + (1.0 - p) * (first == said)).mean())
    return DispatcherCandidate(dispatcher, weight, e.accuracy, e.seconds, tail_s, e.returned, agreement)


def offered(profiled: Profiled, slopes: Sequence[float] = SLOPES) -> list[DispatcherCandidate]:
    """The Pareto-optimal candidates in agreement, accuracy and time; the fastest first.

    Each dispatcher is a candidate with its ensemble, and without one (weight 1), which agrees more.
    Candidates that are slower than the large level alone are left out. All texts choose the candidates and
    measure them: to keep half of the texts for the measurement gave offers that were further from what they
    promised (docs/design/0012-exits-and-cascades.md).
    """
    found = candidates(profiled, slopes)
    found += [candidate(profiled, c.dispatcher, 1.0) for c in found if c.weight != 1.0]
    found = [c for c in found if c.seconds < float(profiled.alone_s.mean())]
    best = [one for one in found if not any(_dominates(other, one) for other in found)]
    return sorted(best, key=lambda c: (c.seconds, -c.agreement, -c.accuracy))


def _dominates(one: DispatcherCandidate, other: DispatcherCandidate) -> bool:
    """Return True if `one` is nowhere worse than `other`, and somewhere better."""
    ours, theirs = ((c.agreement, c.accuracy, -c.seconds) for c in (one, other))
    return ours != theirs and all(a >= b for a, b in zip(ours, theirs, strict=True))


def select(offers: Sequence[Offer], agreement: float, mean_ms: float = np.inf) -> Offer | None:
    """The fastest offer that reaches the agreement within the mean time; None if there is none.

    Of equally fast ones, the most accurate. None means that the large level answers every text. An offer that
    sends every text on is none.
    """
    able = [o for o in offers if o.agreement >= agreement and o.mean_ms <= mean_ms and o.cut_off < 1.0]
    return min(able, key=lambda o: (o.mean_ms, -o.accuracy), default=None)


def ladder(
    offers: Sequence[Offer], agreement: float, mean_ms: float = np.inf, accuracy: float = 0.0
) -> tuple[Offer, ...]:
    """The offers to put to the test together: `select` with each of MARGINS of the tolerated disagreements.

    The most careful one comes first. Evidence takes long for a rate close to the tolerated one, and the
    profile's rows are no random sample of the traffic. If no offer keeps a margin, the agreement itself
    decides. An offer that drops words is tested alone: each would need a run of its own.

    accuracy: the large level's, on the labels of the profile. Offers that lose more than MAX_LOSS of it are
    left out: an agreement alone would allow as much loss as there are other answers.
    """
    able = [offer for offer in offers if keeps(offer, accuracy)]
    careful = [select(able, 1.0 - part * (1.0 - agreement), mean_ms) for part in MARGINS]
    found = list(dict.fromkeys(offer for offer in careful if offer is not None))
    if not found and (last := select(able, agreement, mean_ms)) is not None:
        found = [last]
    return tuple(found[:1] if any(offer.pruning for offer in found) else found)


def keeps(offer: Offer, accuracy: float) -> bool:
    """Return whether an offer loses at most MAX_LOSS of the large level's accuracy in the profile."""
    return offer.accuracy >= accuracy - MAX_LOSS - 1e-9


def pruning_scale(accuracy_at: Callable[[float], float]) -> float:
    """The highest pruning scale α before the large level's accuracy falls by more than MAX_PRUNING_LOSS.

    accuracy_at: runs the large level on texts pruned at a scale. It is called with 0 (no pruning), then from
    .5 up by .1 until the first loss that is too large. Returns 0 if .5 already loses too much.
    """
    full, found = accuracy_at(0.0), 0.0
    steps = round((LAST_SCALE - FIRST_SCALE) / SCALE_STEP)
    for step in range(steps + 1):
        scale = round(FIRST_SCALE + step * SCALE_STEP, 9)
        # The slack keeps a loss of exactly the limit.
        if full - accuracy_at(scale) > MAX_PRUNING_LOSS + 1e-12:
            break
        found = scale
    return found


def _scan(profiled: Profiled, slope: float, least: float) -> Iterator[DispatcherCandidate]:
    for twentieth in TWENTIETHS:
        one = candidate(profiled, Dispatcher(twentieth / 20, slope))
        if one.accuracy < least:
            return
        yield one
