"""The pipeline of shards by a simulated clock: what is read and when, waits, errors, and its end."""

from __future__ import annotations

import pytest

from hmi.errors import Damaged, Unavailable
from hmi.stages.elastic_shards.io_budget import IoBudget
from hmi.stages.elastic_shards.pipeline import Pipeline, Ref, ShardStream
from tests.simulated_clock import SimulatedClock

SPEED = 100.0
COMPUTE_S = 0.3


class Shards:
    """Shards of ten bytes for each bit."""

    def __init__(self, damaged: Ref | None = None) -> None:
        self.damaged, self.seen = damaged, list[Ref]()

    def size(self, ref: Ref) -> int:
        return 10 * ref[2]

    def read(self, ref: Ref) -> str:
        self.seen.append(ref)
        if ref == self.damaged:
            raise Damaged("shard is damaged")
        return f"{ref}"


def layers(count: int, slices: int = 2, bits: int = 2) -> list[list[Ref]]:
    return [[(layer, each, bits) for each in range(slices)] for layer in range(count)]


def pipeline(shards: Shards, ahead: int | None = None) -> tuple[Pipeline[str], SimulatedClock]:
    clock = SimulatedClock()
    budget = IoBudget(SPEED, clock=clock)
    return Pipeline(shards, budget=budget, ahead=ahead, clock=clock, spawn=clock.spawn), clock


def run(pipe: Pipeline[str], clock: SimulatedClock, plan: list[list[Ref]]) -> ShardStream[str]:
    """Take all layers of a plan, and compute each for COMPUTE_S."""
    with pipe.stream(plan) as stream:
        for at, refs in enumerate(plan):
            assert pipe.take(stream, at) == {ref: f"{ref}" for ref in refs}
            clock.sleep_until(clock.now() + COMPUTE_S)
    return stream


def test_a_batch_waits_exactly_as_long_as_the_disk_is_behind() -> None:
    """Each layer takes .4 s to read and .3 s to compute: layer k waits until (k + 1) · .4 s."""
    pipe, clock = pipeline(Shards())
    trace = run(pipe, clock, layers(3)).trace
    assert [(r.layer, r.bytes) for r in trace.reads] == [(0, 40), (1, 40), (2, 40)]
    assert [r.ended for r in trace.reads] == pytest.approx([0.4, 0.8, 1.2])
    assert [w.seconds for w in trace.waits] == pytest.approx([0.4, 0.1, 0.1])
    assert clock.now() == pytest.approx(1.5)


def test_a_preload_buffer_and_slow_layers_leave_nothing_to_wait_for() -> None:
    shards = Shards()
    pipe, clock = pipeline(shards)
    plan = [[(0, 0, 2), (0, 1, 2)], [(1, 0, 2)], [(2, 0, 2)]]
    pipe.preload(plan[0])
    begun = clock.now()
    shards.seen.clear()
    trace = run(pipe, clock, plan).trace
    assert trace.stall_s == 0.0
    assert trace.bytes == pipe.planned_bytes(plan) == 40
    assert shards.seen == [(1, 0, 2), (2, 0, 2)]
    assert clock.now() - begun == pytest.approx(3 * COMPUTE_S)


@pytest.mark.parametrize("ahead", [1, 2, None])
@pytest.mark.parametrize("slices", [1, 2, 3])
def test_the_trace_is_that_of_the_recurrence(ahead: int | None, slices: int) -> None:
    """With a bound, a layer is not read before one of those ahead of it has been computed."""
    pipe, clock = pipeline(Shards(), ahead)
    trace = run(pipe, clock, layers(4, slices)).trace
    read, computed, stall = [0.0], [0.0], 0.0
    """When each layer has been read, and computed; before the first, 0."""
    for at in range(4):
        free = computed[at - ahead + 1] if ahead is not None and at >= ahead else 0.0
        read.append(max(read[-1], free) + 0.2 * slices)
        stall += max(0.0, read[-1] - computed[-1])
        computed.append(max(read[-1], computed[-1]) + COMPUTE_S)
    assert [r.ended for r in trace.reads] == pytest.approx(read[1:])
    assert [r.begun for r in trace.reads] == pytest.approx([end - 0.2 * slices for end in read[1:]])
    assert trace.stall_s == pytest.approx(stall)
    assert clock.now() == pytest.approx(computed[-1])


def test_batches_at_once_are_served_in_order() -> None:
    pipe, clock = pipeline(Shards())
    with pipe.stream(layers(2)) as first, pipe.stream(layers(2)) as second:
        for stream in (first, second):
            for at in range(2):
                pipe.take(stream, at)
    assert clock.now() == pytest.approx(1.6)
    assert first.trace.bytes == second.trace.bytes == 80


def test_a_batch_that_leaves_early_reads_no_further() -> None:
    shards = Shards()
    pipe, clock = pipeline(shards)
    with pipe.stream(layers(4)) as stream:
        pipe.take(stream, 0)
    run(pipe, clock, layers(1))
    assert {ref[0] for ref in shards.seen} == {0, 1}  # layer 1 was under way


def test_a_damaged_shard_fails_its_batch_and_no_other() -> None:
    shards = Shards(damaged=(1, 1, 2))
    pipe, clock = pipeline(shards)
    with pipe.stream(layers(3)) as stream:
        pipe.take(stream, 0)
        with pytest.raises(Damaged, match="shard is damaged"):
            pipe.take(stream, 1)
    shards.damaged = None
    assert run(pipe, clock, layers(3)).trace.bytes == 120


def test_a_closed_pipeline_fails_those_who_wait() -> None:
    pipe, _ = pipeline(Shards())
    with pipe.stream(layers(2)) as stream:
        pipe.close()
        with pytest.raises(Unavailable, match="closed"):
            pipe.take(stream, 1)
    with pytest.raises(Unavailable, match="closed"), pipe.stream(layers(1)):
        pass


def test_readers_share_one_budget() -> None:
    clock = SimulatedClock()
    budget = IoBudget(SPEED, clock=clock)
    budget.spend(50)
    pipe = Pipeline(Shards(), budget=budget, clock=clock, spawn=clock.spawn)
    with pipe.stream(layers(1)) as stream:
        budget.spend(40)  # a module
        pipe.take(stream, 0)
    assert clock.now() == pytest.approx(1.3)
    assert budget.bytes == 130


def test_an_idle_disk_lets_a_burst_pass() -> None:
    clock = SimulatedClock()
    budget = IoBudget(SPEED, burst_bytes=100, clock=clock)
    clock.sleep_until(10.0)
    budget.spend(80)
    assert clock.now() == 10.0
    budget.spend(100)
    assert clock.now() == pytest.approx(10.8)
