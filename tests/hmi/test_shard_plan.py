"""Plans of shards against a simulation by events, and against the paper's check, which is wrong twice."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmi.stages.elastic_shards.plan import Shard, ShardPlan, Speed, Wanted, make_plan, slack, spread, total_s
from hmi.stages.elastic_shards.simulate import simulate
from hmi.stages.elastic_shards.versions import VERSIONS

LAYERS, SHARDS = 4, 3
TICKS = st.integers(0, 40).map(lambda n: n / 8)
"""Seconds whose sums have no rounding."""


@dataclass(frozen=True)
class Sized:
    """A store whose shards have `unit` bytes for each bit, and some have more for their outliers."""

    unit: int = 1

    def size(self, layer: int, shard: int, bits: int) -> int:
        return self.unit * bits + (layer * 7 + shard * 3) % 2


def speed(bytes_per_s: float = 1.0, layer_s: tuple[float, ...] = (1.0, 2.0, 3.0)) -> Speed:
    return Speed(bytes_per_s, layer_s)


def made(
    wanted: Wanted, at: Speed | None = None, importance: Mapping[Shard, float] | None = None
) -> ShardPlan:
    return make_plan(Sized(), LAYERS, at or speed(), wanted, importance or {})


@given(st.lists(st.tuples(TICKS, TICKS), min_size=1, max_size=9), TICKS, st.sampled_from([None, 1, 2, 3]))
def test_slack_says_exactly_whether_the_pipeline_stalls(
    layers: list[tuple[float, float]], first_stall: float, ahead: int | None
) -> None:
    read, compute = zip(*layers, strict=True)
    trace = simulate(read, compute, ahead)
    assert total_s(read, compute, ahead) == trace.total_s == sum(compute) + sum(trace.stalls)
    for k in range(len(read)):
        assert trace.computed[k][0] >= trace.read[k][1]
        assert ahead is None or k < ahead or trace.read[k][0] >= trace.computed[k - ahead][1]
    if ahead is None:
        valid = min(slack(read, compute, first_stall)) >= 0
        assert valid == (sum(trace.stalls) <= first_stall)


BUDGETS = st.integers(0, 60)
SPEEDS = st.builds(
    Speed,
    st.sampled_from([1.0, 4.0, 32.0]),
    st.sampled_from([(1.0, 2.0, 3.0), (1.0, 1.25, 1.5), (2.0, 2.0, 2.0)]),
    st.sampled_from([0.0, 0.5]),
)


@settings(max_examples=60)
@given(target=BUDGETS, buffer=BUDGETS, more=BUDGETS, bigger=BUDGETS, at=SPEEDS)
def test_more_time_or_buffer_never_brings_fewer_shards(
    target: int, buffer: int, more: int, bigger: int, at: Speed
) -> None:
    counts = [len(made(Wanted(target + t, buffer + b), at).bits) for t, b in ((0, 0), (more, 0), (0, bigger))]
    assert counts[0] <= min(counts)


@settings(max_examples=60)
@given(
    target=st.integers(0, 120),
    buffer=BUDGETS,
    reserved=st.integers(0, 5),
    ahead=st.sampled_from([None, 1, 2]),
    at=SPEEDS,
    seed=st.randoms(use_true_random=False),
)
def test_a_plan_that_fits_never_stalls_longer_than_its_target(
    target: int, buffer: int, reserved: int, ahead: int | None, at: Speed, seed: object
) -> None:
    draw = seed.random  # type: ignore[attr-defined]
    importance = {(i, s): draw() for i in range(LAYERS) for s in range(SHARDS)}
    plan = made(Wanted(target, buffer, reserved, ahead=ahead), at, importance)
    sizes = {s: Sized().size(*s, b) for s, b in plan.bits.items()}
    assert plan.held_bytes == sum(sizes[s] for s in plan.held) <= buffer
    assert plan.streamed_bytes == sum(sizes.values()) - plan.held_bytes
    ran = simulate(plan.read_s, plan.compute_s, ahead)
    assert plan.fits == (ran.total_s <= target + 1e-9)
    if ahead is None:
        assert plan.fits == (min(plan.slack_s) >= -1e-9)
    if plan.fits:
        for shard, bits in plan.bits.items():  # nothing more can be raised
            higher = [v for v in VERSIONS if v > bits]
            assert all(
                not _fits({**plan.bits, shard: v}, buffer, reserved, ahead, at, target) for v in higher
            )
    else:
        assert len(plan.bits) == 1
        assert set(plan.bits.values()) == {2}


def _fits(
    bits: Mapping[Shard, int], buffer: int, reserved: int, ahead: int | None, at: Speed, target: float
) -> bool:
    """Hold what there is room for, from the first layer on, and simulate."""
    layers = list(dict.fromkeys(i for i, _ in bits))
    read = [0] * len(layers)
    for shard, width in bits.items():
        size = Sized().size(*shard, width)
        if size <= buffer:
            buffer -= size
        else:
            read[layers.index(shard[0])] += size
    seconds = [at.seconds(each) for each in read]
    seconds[0] += at.seconds(reserved)
    compute = [at.layer_s[len(bits) // len(layers) - 1]] * len(layers)
    return simulate(seconds, compute, ahead).total_s <= target + 1e-9


def paper_valid(
    bits: Mapping[Shard, int], preloaded: Mapping[Shard, int], compute_s: float, size: Mapping[int, float]
) -> bool:
    """The paper's check (§5.4.2): the IO of the whole preload buffer is a bonus to every layer, and every
    chosen shard is debited from its layer on."""
    bonus = sum(size[b] for b in preloaded.values())
    layers = dict.fromkeys(layer for layer, _ in bits)
    debited = accumulate(sum(size[b] for (i, _), b in bits.items() if i == layer) for layer in layers)
    return all(bonus + k * compute_s - debit >= 0 for k, debit in enumerate(debited))


def stall(
    bits: Mapping[Shard, int], held: Collection[Shard], compute_s: float, size: Mapping[int, float]
) -> tuple[float, tuple[float, ...]]:
    """The stall of the simulation, and our slack without a first stall."""
    layers = list(dict.fromkeys(layer for layer, _ in bits))
    read = [sum(size[b] for s, b in bits.items() if s[0] == i and s not in held) for i in layers]
    compute = [compute_s] * len(layers)
    return sum(simulate(read, compute).stalls), slack(read, compute, 0.0)


def test_an_upgraded_preloaded_shard_stalls_though_the_paper_calls_it_valid() -> None:
    size = {2: 1.0, 6: 3.0}
    preloaded = {(0, 0): 2, (0, 1): 2, (1, 0): 2, (1, 1): 2}
    bits = {**preloaded, (1, 0): 6}  # the buffer has its 2-bit version, so all six bits are read
    assert paper_valid(bits, preloaded, 2.0, size)
    stalled, ours = stall(bits, [s for s in bits if bits[s] == preloaded[s]], 2.0, size)
    assert stalled == 1.0
    assert min(ours) < 0


def test_a_preload_that_is_no_prefix_stalls_though_the_paper_calls_it_valid() -> None:
    size = {2: 1.0}
    bits = {(layer, s): 2 for layer in range(3) for s in range(2)}
    preloaded = {(2, 0): 2, (2, 1): 2}  # a bonus from the first layer on, but of use for the last one only
    assert paper_valid(bits, preloaded, 2.0, size)
    stalled, ours = stall(bits, list(preloaded), 2.0, size)
    assert stalled == 2.0
    assert min(ours) < 0


def test_the_submodel_is_the_largest_and_of_equal_ones_the_deepest() -> None:
    fast = speed(bytes_per_s=1e9)
    assert len(made(Wanted(4.01), fast).layers) == 4  # 4 × 1, 2 × 2 and 1 × 3 are within the time
    plan = made(Wanted(6.01), fast)
    assert (len(plan.layers), plan.width) == (3, 2)  # as many as 2 × 3
    assert made(Wanted(6.01, depths=(2,)), fast).layers == (1, 3)
    assert (spread(9, 3), spread(9, 9), spread(12, 5)) == ((2, 5, 8), tuple(range(9)), (1, 3, 6, 8, 11))


def test_a_deeper_submodel_with_one_shard_less_is_taken_if_it_is_as_fast() -> None:
    at = replace(speed(1e9), layer_s=(1.0, 2.0, 3.0))
    wide = Wanted(9.0, depths=(3, 4), widths=(2, 3))
    assert len(made(replace(wide, target_s=9.01), at).bits) == 8  # 4 × 2 takes 8 s, 3 × 3 takes 9 s
    slow = replace(at, layer_s=(1.0, 2.3, 3.0))
    assert len(made(replace(wide, target_s=9.3), slow).bits) == 9


def test_important_shards_are_raised_first() -> None:
    wanted = Wanted(target_s=78, depths=(4,), widths=(3,), versions=(2, 32))
    for best in ((0, 0), (3, 2)):
        plan = made(wanted, importance={best: 1.0})
        assert plan.bits[best] == 32
        assert list(plan.bits.values()).count(32) == 1, "there is time for one"
    assert set(made(replace(wanted, target_s=38, versions=(2, 3))).bits.values()) == {2, 3}


def test_a_plan_keeps_a_memory_limit() -> None:
    wanted = Wanted(target_s=1e9, buffer=10**9, ahead=2, working=(10, 20, 30))
    with pytest.raises(ValueError, match="ahead"):
        Wanted(1.0, memory=1)
    for memory in (50, 150, 300, 10**6):
        plan = made(replace(wanted, memory=memory))
        layer = max(sum(Sized().size(*s, b) for s, b in plan.bits.items() if s[0] == i) for i in plan.layers)
        assert plan.fits
        assert plan.held_bytes + 2 * layer + 10 * plan.width <= memory
    assert not made(replace(wanted, memory=11)).fits
