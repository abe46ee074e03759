"""The plan of a root's shards: which submodel runs, which version of each shard, and what stays in memory.

Two stages, as in STI §5. The compute plan is the largest number of layers times shards that the target time
allows. The IO plan gives all its shards the highest bitwidth that can be read in time, and then raises single
shards by their importance. A plan is valid if slack(k) = S0 + Σ_{j<k} compute_j − streamed(k) is at least 0
at every layer k. streamed(k) are the seconds that it takes to read the modules and, up to layer k, those
shards that are not held in the version that the plan has chosen. S0 is the wait before the first layer, which
is a part of the target time. docs/design/0014-elastic-shards.md says where this differs from the paper.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf, prod
from typing import Protocol

from hmi.stages.elastic_shards.versions import VERSIONS

Shard = tuple[int, int]
"""The index of its layer in the root, and its own in the layer."""
TOLERANCE_S = 1e-9
"""Sums of times that differ by less are equal."""


class Sizes(Protocol):
    """The sizes of stored shards. A `ShardStore` has them."""

    def size(self, layer: int, shard: int, bits: int) -> int:
        """Return the bytes of a shard's version."""
        ...


@dataclass(frozen=True)
class Speed:
    """The measured speed of a machine with one root."""

    bytes_per_s: float
    """Reading."""
    layer_s: tuple[float, ...]
    """[shards]: the seconds of one layer with 1, 2, … shards, decoding included."""
    read_s: float = 0.0
    """The seconds that each layer's read takes besides its bytes."""

    def seconds(self, size: int) -> float:
        """Return the seconds that one read of `size` bytes takes."""
        return self.read_s + size / self.bytes_per_s if size else 0.0


@dataclass(frozen=True)
class Wanted:
    """The limits that a plan keeps."""

    target_s: float
    """The time of a batch, from the start of its first read to the end of its last layer."""
    buffer: int = 0
    """Bytes of shards that may be held in memory between batches."""
    reserved: int = 0
    """Bytes of the batch's modules, which are read before the first layer."""
    depths: tuple[int, ...] | None = None
    """The numbers of layers to choose from; None: any."""
    widths: tuple[int, ...] | None = None
    """The numbers of shards of each layer to choose from; None: any."""
    versions: tuple[int, ...] = VERSIONS
    """The bitwidths to choose from, ascending."""
    ahead: int | None = None
    """The most layers that are read, or in reading, and not computed yet; None: any number."""
    memory: int | None = None
    """A limit on the bytes in memory: shards that are held, those read ahead, and `working`. It needs
    `ahead`. None: no limit."""
    working: tuple[int, ...] = ()
    """[shards]: the bytes that computing with layers of 1, 2, … shards takes; () takes none."""

    def __post_init__(self) -> None:
        if self.memory is not None and self.ahead is None:
            raise ValueError("a plan within a memory limit needs a limit on the layers read ahead")


@dataclass(frozen=True)
class ShardPlan:
    """The shards of one submodel, and how each comes into memory."""

    bits: Mapping[Shard, int]
    """The version of each shard of the submodel, in the order of the layers and shards."""
    held: frozenset[Shard]
    """The shards that stay in memory, each in its version."""
    read_s: tuple[float, ...]
    """[layers of the submodel]: the seconds of each layer's read. The first includes the modules'."""
    compute_s: tuple[float, ...]
    """[layers of the submodel]."""
    slack_s: tuple[float, ...]
    """[layers of the submodel]: the slack of each layer with S0 = target − compute. Without a limit on layers
    read ahead, none is negative exactly if the plan fits."""
    held_bytes: int
    streamed_bytes: int
    """The bytes of shards that each batch reads; the modules' are not among them."""
    fits: bool
    """False if no submodel meets the limits. The plan is then the fastest one."""

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers of the root that the submodel has, ascending."""
        return tuple(dict.fromkeys(layer for layer, _ in self.bits))

    @property
    def width(self) -> int:
        """The number of shards of each layer. They are the layer's first."""
        return len(self.bits) // len(self.layers)

    def reads(self, layer: int) -> list[tuple[int, int]]:
        """Return the shards of a layer that each batch reads, with their bitwidths."""
        return [(s, b) for (i, s), b in self.bits.items() if i == layer and (i, s) not in self.held]


def spread(layers: int, depth: int) -> tuple[int, ...]:
    """Return `depth` of the layers, spread evenly, with the last among them."""
    return tuple((i + 1) * layers // depth - 1 for i in range(depth))


def slack(read_s: Sequence[float], compute_s: Sequence[float], first_stall_s: float) -> tuple[float, ...]:
    """Return the slack of each layer. read_s, compute_s: [layers]; first_stall_s: S0."""
    begun = (0.0, *accumulate(compute_s))
    return tuple(first_stall_s + done - streamed for done, streamed in zip(begun, accumulate(read_s)))  # noqa: B905


def total_s(read_s: Sequence[float], compute_s: Sequence[float], ahead: int | None = None) -> float:
    """Return the seconds from the first read to the end of the last layer. Equal to `simulate(…).total_s`."""
    read, ends = 0.0, [0.0]
    for i, (reading, computing) in enumerate(zip(read_s, compute_s, strict=True)):
        free = ends[i - ahead + 1] if ahead is not None and i >= ahead else 0.0
        read = max(read, free) + reading
        ends.append(max(ends[-1], read) + computing)
    return ends[-1]


def make_plan(
    sizes: Sizes, layers: int, speed: Speed, wanted: Wanted, importance: Mapping[Shard, float]
) -> ShardPlan:
    """Choose the submodel, the version of each shard, and the shards to hold.

    layers: those of the root. importance: the score of each shard; those without one come last.
    """
    maker = _Maker(sizes, layers, speed, wanted)
    submodel, fits = maker.computed()
    plan = maker.uniform(submodel)
    return maker.raised(plan, importance) if fits else plan


class _Maker:
    def __init__(self, sizes: Sizes, layers: int, speed: Speed, wanted: Wanted) -> None:
        self._sizes, self._layers, self._speed, self._wanted = sizes, layers, speed, wanted

    def computed(self) -> tuple[tuple[Shard, ...], bool]:
        """The compute plan: the submodel with the most shards that fits with the lowest bitwidth, and True;
        the smallest submodel and False if none fits.

        On a tie the deeper one is taken. A deeper one with one shard less is taken only if it takes no longer
        with this buffer or any smaller one: otherwise more time or more buffer could bring fewer shards.
        """
        depths = self._wanted.depths or tuple(range(1, self._layers + 1))
        widths = self._wanted.widths or tuple(range(1, len(self._speed.layer_s) + 1))
        each = ((depth, width) for depth in depths for width in widths)
        fitting = [one for one in each if self._lowest(one, self._wanted.buffer).fits]
        if not fitting:
            return self._submodel(min(depths), min(widths)), False
        most = max(map(prod, fitting))
        largest = [one for one in fitting if prod(one) == most]
        deeper = [one for one in fitting if prod(one) == most - 1 and one > max(largest)]
        for one in sorted(deeper, reverse=True):
            if all(self._never_slower(one, other) for other in largest):
                return self._submodel(*one), True
        return self._submodel(*max(largest)), True

    def _never_slower(self, one: tuple[int, int], other: tuple[int, int]) -> bool:
        """Return whether a submodel takes no longer than another, with any buffer up to the wanted one."""
        buffers = {0, self._wanted.buffer}
        for submodel in (one, other):
            sizes = (self._sizes.size(*s, self._wanted.versions[0]) for s in self._submodel(*submodel))
            buffers |= {at for at in accumulate(sizes) if at < self._wanted.buffer}
        return all(
            self._takes(self._lowest(one, buffer)) <= self._takes(self._lowest(other, buffer))
            for buffer in buffers
        )

    def _lowest(self, submodel: tuple[int, int], buffer: int) -> ShardPlan:
        """The plan of a submodel (depth, width) at the lowest bitwidth."""
        bits = dict.fromkeys(self._submodel(*submodel), self._wanted.versions[0])
        return self._plan(bits, buffer)

    def uniform(self, submodel: Sequence[Shard]) -> ShardPlan:
        """Pass 1: the highest bitwidth that all shards can have; the lowest if none fits."""
        plans = [self._plan(dict.fromkeys(submodel, bits)) for bits in self._wanted.versions]
        return next((plan for plan in reversed(plans) if plan.fits), plans[0])

    def raised(self, plan: ShardPlan, importance: Mapping[Shard, float]) -> ShardPlan:
        """Pass 2: give each shard, the most important first, the highest version with which the plan fits."""
        for shard in sorted(plan.bits, key=lambda s: -importance.get(s, -inf)):
            for bits in reversed(self._wanted.versions):
                if bits <= plan.bits[shard]:
                    break
                tried = self._plan({**plan.bits, shard: bits})
                if tried.fits:
                    plan = tried
                    break
        return plan

    def _submodel(self, depth: int, width: int) -> tuple[Shard, ...]:
        return tuple((layer, s) for layer in spread(self._layers, depth) for s in range(width))

    def _plan(self, bits: Mapping[Shard, int], buffer: int | None = None) -> ShardPlan:
        """The plan with these versions. From the first layer on, it holds each shard that there is room for.

        A shard of a lower layer is missed by all layers above, so it helps more than one of a higher layer.
        With more room, the bytes held up to any layer are never fewer.
        """
        size = {s: self._sizes.size(*s, b) for s, b in bits.items()}
        layers = tuple(dict.fromkeys(layer for layer, _ in bits))
        room = self._room(size, layers, self._wanted.buffer if buffer is None else buffer)
        held_bytes, held = 0, set()
        for shard, each in size.items():
            if held_bytes + each <= room:
                held_bytes += each
                held.add(shard)
        return self._timed(bits, frozenset(held), size, layers, room)

    def _timed(
        self,
        bits: Mapping[Shard, int],
        held: Collection[Shard],
        size: Mapping[Shard, int],
        layers: Sequence[int],
        room: int,
    ) -> ShardPlan:
        streamed = dict.fromkeys(layers, 0)
        for shard, each in size.items():
            if shard not in held:
                streamed[shard[0]] += each
        read = [self._speed.seconds(each) for each in streamed.values()]
        read[0] += self._speed.seconds(self._wanted.reserved)
        compute = [self._speed.layer_s[len(bits) // len(layers) - 1]] * len(layers)
        first_stall = self._wanted.target_s - sum(compute)
        plan = ShardPlan(
            bits=bits,
            held=frozenset(held),
            read_s=tuple(read),
            compute_s=tuple(compute),
            slack_s=slack(read, compute, first_stall),
            held_bytes=sum(size[s] for s in held),
            streamed_bytes=sum(streamed.values()),
            fits=room >= 0,
        )
        return replace(plan, fits=plan.fits and self._takes(plan) <= self._wanted.target_s + TOLERANCE_S)

    def _takes(self, plan: ShardPlan) -> float:
        return total_s(plan.read_s, plan.compute_s, self._wanted.ahead)

    def _room(self, size: Mapping[Shard, int], layers: Sequence[int], buffer: int) -> int:
        """The bytes of shards that can be held; negative if not even what is computed with has room."""
        wanted = self._wanted
        if wanted.memory is None:
            return buffer
        assert wanted.ahead is not None, "checked in Wanted"
        largest = max(sum(each for (at, _), each in size.items() if at == layer) for layer in layers)
        working = wanted.working[len(size) // len(layers) - 1] if wanted.working else 0
        return min(buffer, wanted.memory - working - wanted.ahead * largest)
