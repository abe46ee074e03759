"""Order on a device, and its slots: no copy into a slot that is read, no layer before its modules.

The twin runs streams in any order that events permit. The same batches on a careless twin, which forgets
some waits, show that a missing wait is found.
"""

from __future__ import annotations

import gc
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from hmi.execution import BatchKey, Rows
from hmi.execution.cuda import twin as twins
from hmi.execution.cuda.slots import Slots, doubled
from hmi.execution.cuda.twin import Twin
from hmi.execution.packed import PackedExecutor, run_rows
from hmi.model.tenant.modules import TenantModule
from tests.hmi.execution.test_fused import BERT, DEPTH, module, packed, upper
from tests.hmi.labs.cuda_lab import DEVICES, Broken, device_of, executor, on_two_threads

KEY = BatchKey(("", ""), "rows", exact=False)
SEEDS = range(12)
Batches = list[tuple[Tensor, list[int], list[TenantModule | None]]]


def batches(count: int, seed: int, modules: list[TenantModule]) -> Batches:
    """Small batches of two tenants each."""
    draw, made = random.Random(seed), []
    for _ in range(count):
        x, offsets = packed((draw.randint(1, 6), draw.randint(1, 6)), BERT.dim)
        made.append((x, offsets, list(draw.sample(modules, 2))))
    return made


@pytest.fixture(scope="module")
def tenants() -> list[TenantModule]:
    return [module(BERT, "lora" if rank % 2 else "parallel", rank) for rank in range(2, 8)]


@pytest.fixture(scope="module")
def churn(tenants: list[TenantModule]) -> tuple[Batches, list[Tensor]]:
    """Batches whose modules drive each other out of two slots, and their right answers."""
    made, reference = batches(7, 1, tenants), PackedExecutor(upper(BERT), BERT)
    return made, [run_rows(reference, *batch) for batch in made]


def all_right(device: Any, churn: tuple[Batches, list[Tensor]]) -> bool:
    """Whether the answers are right if all batches are enqueued before the first is waited for."""
    ours = executor(device, slots=2)
    started = []
    for i, (x, offsets, modules) in enumerate(churn[0]):
        begun = ours.start(KEY, Rows.packed(x, offsets), [ours.packed(m) for m in modules])
        started.append(begun)
        if i + 1 < len(churn[0]):
            ours.prefetch(churn[0][i + 1][2])
    answers = []
    for ((left, there),) in started:
        there.wait()
        answers.append(left.last)
    return all(torch.allclose(a, w, atol=2e-5, rtol=0) for a, w in zip(answers, churn[1], strict=True))


@pytest.mark.parametrize("device", DEVICES)
def test_batches_that_drive_each_other_out_of_the_slots(
    device: str, churn: tuple[Batches, list[Tensor]]
) -> None:
    for seed in SEEDS if device == "twin" else (0,):
        assert all_right(device_of(device, seed), churn), seed


class Careless(Twin):
    """A twin whose streams forget to wait: the copies' stream, or the compute streams."""

    def __init__(self, seed: int, copies: bool) -> None:
        super().__init__(seed)
        self.copies = copies

    def enqueue(self, stream: Any, op: Any) -> None:
        if op.kind != "wait" or (stream.name == "copies") != self.copies:
            super().enqueue(stream, op)


@pytest.mark.parametrize("copies", [True, False])
def test_the_twin_finds_a_missing_wait(copies: bool, churn: tuple[Batches, list[Tensor]]) -> None:
    assert not all(all_right(Careless(seed, copies), churn) for seed in SEEDS)


def test_an_event_that_no_stream_reaches_is_found() -> None:
    twin = Twin()
    stream = twin.stream("one")
    stream.wait(twins._Event(twin))  # recorded nowhere
    with pytest.raises(AssertionError, match="no stream will reach"):
        stream.record().wait()


def test_modules_arrive_a_few_layers_at_a_time(tenants: list[TenantModule]) -> None:
    """The first layer of every module of a batch is copied before the next two layers of any, and so on."""
    twin = Twin(3)
    ours = executor(twin)
    ours.prefetch(tenants[:3])
    run_rows(ours, *packed((2, 3, 4), BERT.dim), tenants[:3])
    copied = [name for stream, _, name in twin.ran if stream == "copies"]
    begins = [some.start for some in doubled(DEPTH)]
    assert copied == [f"modules from layer {i + 1}" for i in begins for _ in range(3)]
    assert begins == [0, 1]
    assert doubled(12) == [range(1), range(1, 3), range(3, 7), range(7, 12)]


def test_a_layer_runs_while_the_next_ones_modules_are_still_copied(tenants: list[TenantModule]) -> None:
    """For some order, the first layer has run before the last layer's copies: nothing waits for all."""
    overlapped = False
    for seed in SEEDS:
        twin = Twin(seed)
        run_rows(executor(twin), *packed((2, 3), BERT.dim), tenants[:2])
        names = [name for _, _, name in twin.ran]
        overlapped |= names.index("layer 1") < names.index("modules from layer 2")
    assert overlapped


def test_what_was_prefetched_is_not_copied_again(tenants: list[TenantModule]) -> None:
    ours = executor(Twin(), slots=2)
    ours.prefetch(tenants[:2])
    copied = ours.slots.copied_bytes
    assert copied == sum(ours.prepare(m) for m in tenants[:2])
    ours.prefetch(tenants[2:4])  # another batch: the first one's modules are spared
    run_rows(ours, *packed((2, 3), BERT.dim), tenants[:2])
    assert ours.slots.copied_bytes == copied


def test_modules_whose_copies_failed_are_copied_again(
    tenants: list[TenantModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = executor(Twin(2), slots=4)
    wanted = run_rows(executor(Twin(3)), *packed((2, 3), BERT.dim), tenants[:2])
    with monkeypatch.context() as broken:
        broken.setattr(twins._Stream, "copy_parts", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            ours.prefetch(tenants[:2])
    assert ours.slots.held() == 0
    torch.testing.assert_close(run_rows(ours, *packed((2, 3), BERT.dim), tenants[:2]), wanted)


@pytest.mark.parametrize("device", DEVICES)
def test_threads_share_an_executor_under_churn(device: str, tenants: list[TenantModule]) -> None:
    """Two compute threads, three slots, six tenants of unlike sizes: every answer is right."""
    ours, reference = executor(device_of(device, 7), slots=3), PackedExecutor(upper(BERT), BERT)

    def work(seed: int) -> None:
        for x, offsets, modules in batches(25, seed, tenants):
            ours.prefetch(modules)
            got, wanted = (run_rows(e, x, offsets, modules) for e in (ours, reference))
            torch.testing.assert_close(got, wanted, atol=2e-5, rtol=0)

    on_two_threads(work)
    check(ours.slots)


@pytest.mark.gpu
def test_no_operation_waits_for_the_device(tenants: list[TenantModule]) -> None:
    """torch raises at any operation that would make the host wait, other than the events of `Event.wait`."""
    ours, (x, offsets) = executor(device_of("gpu"), slots=2), packed((5, 9, 9), BERT.dim)
    pinned = ours.space(len(x))
    pinned.copy_(x)
    for modules in ([*tenants[:2], None], [*tenants[2:4], None]):
        packed_modules = [None if m is None else ours.packed(m) for m in modules]
        torch.cuda.set_sync_debug_mode("error")
        try:
            ours.prefetch(modules)
            started = ours.start(KEY, Rows.packed(pinned, offsets), packed_modules)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        for _, there in started:
            there.wait()


def check(slots: Slots) -> None:
    """Each slot has one owner or none, and no module is pinned; the memory is what it was at the start."""
    assert slots.memory.numel() == slots.count * slots.size
    owned: dict[int, int] = {}
    for key, entry in slots._entries.items():
        assert entry.pins == 0
        for slot in range(entry.first, entry.first + entry.count):
            assert owned.setdefault(slot, key) == key
    assert owned == {i: owner for i, owner in enumerate(slots._owners) if owner is not None}
    assert slots._free == {i for i, owner in enumerate(slots._owners) if owner is None}


def test_slots_of_many_sizes_are_never_shared() -> None:
    """Random batches of modules of one to five slots, against what each batch must find in its memory."""
    sizes, ours = (4, 20, 30, 41), executor(Twin(11), slots=6)
    modules = [module(BERT, "lora", rank) for rank in sizes for _ in range(2)]
    reference = PackedExecutor(upper(BERT), BERT)
    for x, offsets, chosen in batches(25, 5, modules):
        got = run_rows_in_parts(ours, x, offsets, chosen)
        torch.testing.assert_close(got, run_rows(reference, x, offsets, chosen), atol=2e-5, rtol=0)
        check(ours.slots)


def run_rows_in_parts(ours: Any, x: Tensor, offsets: list[int], modules: Any) -> Tensor:
    return torch.cat([left.last for left in ours.run(KEY, Rows.packed(x, offsets), modules)])


def test_a_module_that_is_gone_gives_its_slot_back(tenants: list[TenantModule]) -> None:
    ours, (x, offsets) = executor(Twin()), packed((3,), BERT.dim)
    mine = module(BERT, "lora", 8)
    run_rows(ours, x, offsets, [mine])
    run_rows(ours, x, offsets, [tenants[0]])
    assert ours.slots.held() == 2
    del mine
    gc.collect()
    assert ours.slots.held() == 1
    check(ours.slots)


def test_a_batch_that_fails_lets_go_of_its_slots(tenants: list[TenantModule]) -> None:
    ours, (x, offsets) = executor(Twin()), packed((3,), BERT.dim)
    with pytest.raises(RuntimeError, match="broken"):
        list(ours.run(KEY, Rows.packed(x, offsets), [tenants[0]], [Broken()]))
    check(ours.slots)
