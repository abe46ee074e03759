"""The ways of running a root behind a slow disk that STI compares (section 7.1), each with its best submodel.

All arms choose among the same submodels, by the same profile: the accuracy on rows that are not scored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hmi.stages.elastic_shards.plan import Shard, ShardPlan, Speed, Wanted, make_plan, total_s
from hmi.stages.elastic_shards.store import ShardStore
from hmi.stages.elastic_shards.versions import FULL, VERSIONS

SKEW: Final = 339 / 95
"""The seconds that a full layer takes to read, divided by those that it takes to compute (section 2.2)."""
WIDTHS: Final = (3, 6, 9, 12)
"""Twelfths of a layer: the widths of the submodels."""
Submodel = tuple[int, int]
"""Its layers, which are the root's first, and the shards of each."""


def widths_of(store: ShardStore) -> list[int]:
    """Return the widths that are compared, in shards of a layer."""
    return sorted({max(1, store.shards * w // 12) for w in WIDTHS})


@dataclass(frozen=True)
class Lab:
    """A root's shards behind a disk."""

    store: ShardStore
    speed: Speed
    buffer: int
    """Bytes of the preload buffer of `ours`."""
    depths: tuple[int, ...]
    """The depths at which a model answers."""

    @property
    def submodels(self) -> Iterator[Submodel]:
        return ((depth, width) for depth in self.depths for width in widths_of(self.store))

    def planned(
        self,
        submodel: Submodel,
        target_s: float,
        *,
        buffer: int,
        versions: tuple[int, ...],
        importance: Mapping[Shard, float],
    ) -> ShardPlan:
        """Return the plan of one submodel."""
        depth, width = submodel
        wanted = Wanted(target_s, buffer=buffer, depths=(depth,), widths=(width,), versions=versions)
        return make_plan(self.store, depth, self.speed, wanted, importance)

    def plain(self, submodel: Submodel, bits: int) -> tuple[float, float]:
        """Return the seconds that a submodel takes to read at one bitwidth, and to compute."""
        depth, width = submodel
        size = [sum(self.store.size(i, s, bits) for s in range(width)) for i in range(depth)]
        return sum(map(self.speed.seconds, size)), depth * self.speed.layer_s[width - 1]


@dataclass(frozen=True)
class Run:
    """One arm's submodel within a target time."""

    bits: Mapping[Shard, int]
    seconds: float
    """Predicted."""
    held_bytes: int
    plan: ShardPlan | None = None


Arm = Callable[[Lab, Submodel, float, Mapping[Shard, float]], Run | None]
"""(lab, submodel, target seconds, importance) -> its run; None: the submodel takes longer than the target."""


def _same(submodel: Submodel, bits: int) -> dict[Shard, int]:
    return {(i, s): bits for i in range(submodel[0]) for s in range(submodel[1])}


def _load_and_execute(lab: Lab, submodel: Submodel, target_s: float, _: Mapping[Shard, float]) -> Run | None:
    seconds = sum(lab.plain(submodel, FULL))
    return Run(_same(submodel, FULL), seconds, 0) if seconds <= target_s else None


def _preload(lab: Lab, submodel: Submodel, target_s: float, _: Mapping[Shard, float]) -> Run | None:
    """The whole root stays in memory, of which the submodel runs."""
    seconds = lab.plain(submodel, FULL)[1]
    return Run(_same(submodel, FULL), seconds, lab.store.full_bytes) if seconds <= target_s else None


def _pipelined(bits: int) -> Arm:
    """Standard pipelining: all shards at one bitwidth, nothing in memory."""

    def run(lab: Lab, submodel: Submodel, target_s: float, _: Mapping[Shard, float]) -> Run | None:
        plan = lab.planned(submodel, target_s, buffer=0, versions=(bits,), importance={})
        return Run(plan.bits, taken_s(plan), 0, plan) if plan.fits else None

    return run


def _ours(lab: Lab, submodel: Submodel, target_s: float, importance: Mapping[Shard, float]) -> Run | None:
    plan = lab.planned(submodel, target_s, buffer=lab.buffer, versions=VERSIONS, importance=importance)
    return Run(plan.bits, taken_s(plan), plan.held_bytes, plan) if plan.fits else None


ARMS: Final[Mapping[str, Arm]] = {
    "ours": _ours,
    "preload": _preload,
    "load_and_execute": _load_and_execute,
    "pipelined_full": _pipelined(FULL),
    "pipelined_2bit": _pipelined(2),
    "pipelined_6bit": _pipelined(6),
}
PIPELINED: Final = ("pipelined_full", "pipelined_2bit", "pipelined_6bit")


def taken_s(plan: ShardPlan) -> float:
    """Return the predicted seconds of a plan."""
    return total_s(plan.read_s, plan.compute_s)


def best(
    arm: Arm, lab: Lab, target_s: float, profile: Mapping[Submodel, float], importance: Mapping[Shard, float]
) -> Run | None:
    """Return the run of the submodel that the profile likes best; of equals, the one with more shards."""
    runs = {one: run for one in lab.submodels if (run := arm(lab, one, target_s, importance)) is not None}
    if not runs:
        return None
    return runs[max(runs, key=lambda one: (profile[one], one[0] * one[1]))]


def layers_of(bits: Mapping[Shard, int]) -> list[list[tuple[int, int, int]]]:
    """Return a run's shards by layer, as `ShardWeights` takes them."""
    found: dict[int, list[tuple[int, int, int]]] = {}
    for (layer, shard), width in bits.items():
        found.setdefault(layer, []).append((layer, shard, width))
    return [found[layer] for layer in sorted(found)]


def upgraded(
    store: ShardStore, order: Sequence[Shard], room: int, low: int = 2, high: int = 6
) -> dict[Shard, int]:
    """Return all shards at `low` bits, and the first of `order` for whose growth there is room at `high`."""
    bits = {(i, s): low for i in range(len(store.layers)) for s in range(store.shards)}
    for shard in order:
        more = store.size(*shard, high) - store.size(*shard, low)
        if more <= room:
            bits[shard] = high
            room -= more
    return bits
