"""Ramp adjustment: which sites have an active ramp (Apparate, section 3.3 and Algorithm 2).

Site s lies before upper layer s; site 0 is right after retrieval. Measured costs and counts go in, a set of
active sites comes out. The caller keeps it, and calls `adjust` once in a while (Apparate: 128 texts).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Costs:
    """Measured seconds for a text, of one shape of batch."""

    layer_s: tuple[float, ...]
    """[layers]: of each upper layer."""
    ramp_s: tuple[float, ...]
    """[layers]: of a ramp at each site, with what it takes to drop the texts that leave."""
    fixed_s: float = 0.0
    """What the stage takes besides for every text, whether it leaves or not."""

    def __post_init__(self) -> None:
        if len(self.layer_s) != len(self.ramp_s) or min((*self.layer_s, *self.ramp_s), default=0.0) < 0.0:
            raise ValueError("costs: layer_s and ramp_s need one time for each layer, none of them negative")

    @property
    def full_s(self) -> float:
        """Of all layers, without ramps."""
        return sum(self.layer_s)

    def rest_s(self, site: int) -> float:
        """Of the layers after a site."""
        return sum(self.layer_s[site:])

    def overhead(self, active: Iterable[int]) -> float:
        """The time that all ramps add to a text, divided by its time without ramps."""
        return sum(self.ramp_s[site] for site in active) / self.full_s


@dataclass(frozen=True)
class Counts:
    """Counts and times of one ramp over a period."""

    reached: int
    """The texts that came to the ramp."""
    left: int
    """Those of them that left there."""


Counted = Mapping[int, Counts]
"""The values by active site."""


@dataclass(frozen=True)
class Ramps:
    """The sites with a ramp."""

    active: tuple[int, ...]
    """Ascending. Without any, the stage is off."""
    failed: frozenset[int] = field(default_factory=frozenset)
    """Sites that were tried and lost time. They are tried no more; an alarm or an update clears the list."""


def saved_s(costs: Costs, active: Sequence[int]) -> list[float]:
    """The seconds that an exit at each active ramp avoids: the later layers, and the later active ramps."""
    return [
        costs.rest_s(site) + sum(costs.ramp_s[later] for later in active[i + 1 :])
        for i, site in enumerate(active)
    ]


def utility(costs: Costs, site: int, counts: Counts) -> float:
    """Seconds that a ramp saved less those that it cost, over a period.

    The texts that left avoided the layers after it. Every text that reached it paid for it; Apparate counts
    the cost only for those that stayed, although those that leave have waited for it too.
    """
    return counts.left * costs.rest_s(site) - counts.reached * costs.ramp_s[site]


def first(costs: Costs, budget: float) -> Ramps:
    """The first sites: as many as the budget allows, evenly spaced (section 3.1), all at threshold 0.

    budget: the most that ramps may add to a text that passes them all, as a fraction of the time without.
    """
    layers = len(costs.layer_s)
    for count in range(layers, 0, -1):
        active = tuple(sorted({(i * layers) // count for i in range(count)}))
        if costs.overhead(active) <= budget:
            return Ramps(active)
    return Ramps(())


def adjust(costs: Costs, ramps: Ramps, counts: Counted, budget: float) -> Ramps:
    """The ramps for the next period. New ones start at threshold 0 until they are tuned.

    If a ramp lost time, all that did are removed, and the most promising site after
    the last useful ramp takes their place. If none did, an earlier site is tried: one more ramp just before
    the most useful, or, beyond the budget, the least useful moves one site earlier. The result is always
    within the budget. Tune the thresholds before calling: better ones may turn a loss into a gain.
    """
    if set(counts) != set(ramps.active):
        raise ValueError(f"counts: sites {sorted(counts)}, but the active ramps are {list(ramps.active)}")
    worth = {site: utility(costs, site, counts[site]) for site in ramps.active}
    losing = [site for site in ramps.active if worth[site] < 0.0]
    if losing:
        kept = tuple(site for site in ramps.active if worth[site] >= 0.0)
        failed = ramps.failed | set(losing)
        trial = _replacement(costs, kept, losing, failed, counts)
        return within(costs, Ramps(_with(kept, trial), failed), worth, budget)
    return within(costs, _earlier(costs, ramps, worth, budget), worth, budget)


def within(costs: Costs, ramps: Ramps, worth: Mapping[int, float], budget: float) -> Ramps:
    """Drop ramps until their overhead is within the budget: new ones first, then the least useful.

    So a ramp that was measured again and found dearer cannot break the budget.
    """
    active = list(ramps.active)
    while active and costs.overhead(active) > budget:
        new = [site for site in active if site not in worth]
        active.remove(new[0] if new else min(active, key=lambda site: worth[site]))
    return Ramps(tuple(active), ramps.failed)


def _replacement(
    costs: Costs, kept: Sequence[int], losing: Sequence[int], failed: frozenset[int], counts: Counted
) -> int | None:
    """The site after the last useful ramp with the highest upper bound of its utility, if one is positive.

    The removed ramps divide the sites there into intervals. Each interval's middle is compared first, then
    the later sites of each.
    """
    after = max(kept, default=-1)
    walls = [site for site in losing if site > after]
    intervals = [range(a + 1, b) for a, b in zip([after, *walls], [*walls, len(costs.layer_s)], strict=True)]
    pending = [[site for site in span[len(span) // 2 :] if site not in failed] for span in intervals]
    while any(pending):
        bounds = {sites[0]: _bound(costs, sites[0], kept, walls, counts) for sites in pending if sites}
        site = max(bounds, key=lambda site: bounds[site])
        if bounds[site] > 0.0:
            return site
        pending = [sites[1:] for sites in pending]
    return None


def _bound(costs: Costs, site: int, kept: Sequence[int], walls: Sequence[int], counts: Counted) -> float:
    """An upper bound of a site's utility: it takes all texts that left at removed ramps up to the next one.

    After the last removed ramp nothing was recorded, so all texts that came might leave.
    """
    last = counts[max(kept)] if kept else None
    came = counts[walls[0]].reached if last is None else last.reached - last.left
    following = [wall for wall in walls if wall > site]
    left = sum(counts[wall].left for wall in walls if wall <= following[0]) if following else came
    return utility(costs, site, Counts(came, left))


def _earlier(costs: Costs, ramps: Ramps, worth: Mapping[int, float], budget: float) -> Ramps:
    if not ramps.active:
        return ramps
    top = max(ramps.active, key=lambda site: worth[site])
    if _free(ramps, top - 1):
        more = _with(ramps.active, top - 1)
        if costs.overhead(more) <= budget:
            return Ramps(more, ramps.failed)
    least = min(ramps.active, key=lambda site: worth[site])
    if least == top or not _free(ramps, least - 1):
        return ramps
    kept = tuple(site for site in ramps.active if site != least)
    return Ramps(_with(kept, least - 1), ramps.failed)


def _free(ramps: Ramps, site: int) -> bool:
    return site >= 0 and site not in ramps.active and site not in ramps.failed


def _with(active: Sequence[int], site: int | None) -> tuple[int, ...]:
    return tuple(sorted(active)) if site is None else tuple(sorted([*active, site]))
