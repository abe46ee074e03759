"""Graphs of layers: a replay equals packed torch, whoever the tenants are, and whatever the twin does."""

from __future__ import annotations

import logging
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from hmi.execution import BatchKey, Rows
from hmi.execution.batch import rounded
from hmi.execution.cuda import CudaExecutor, graphs
from hmi.execution.cuda.twin import Twin
from hmi.execution.packed import PackedExecutor, run_rows
from hmi.model.network.shape import EncoderShape
from hmi.model.tenant.modules import TenantModule
from hmi.modulespec import Kind
from tests.hmi.execution.test_cuda_executor import CLOSE
from tests.hmi.execution.test_cuda_order import Careless
from tests.hmi.execution.test_fused import BERT, DEPTH, MPNET, first, module, packed, upper
from tests.hmi.labs.cuda_lab import DEVICES, device_of, executor, on_two_threads

Modules = list[TenantModule | None]
KEY = BatchKey(("", ""), "rows", exact=False)


def replaying(device: Any, shape: EncoderShape = BERT, **kwargs: Any) -> CudaExecutor:
    """An executor that captures each shape at its first batch."""
    ours: CudaExecutor = executor(device, shape, way="kernel", **kwargs)
    ours.graphs.on = True
    return ours


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "RECURS", 1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [BERT, MPNET], ids=["bert", "mpnet"])
@pytest.mark.parametrize("kind", get_args(Kind))
def test_other_tenants_texts_and_lengths_run_in_the_same_graph(
    device: str, shape: EncoderShape, kind: Kind
) -> None:
    """Mixed ranks, texts without modules, neighbours that share one; two batches of a shape."""
    a, b, c, d = (module(shape, kind, rank) for rank in (3, 8, 24, 5))
    many: list[tuple[tuple[int, ...], Modules]] = [
        ((15, 9, 22, 12), [a, a, None, b]),
        ((24, 8, 17, 11), [c, None, d, b]),
        ((30, 1, 20), [None, d, d]),
    ]
    reference, ours = PackedExecutor(upper(shape), shape), replaying(device_of(device, len(kind)), shape)
    for lengths, modules in many:
        x, offsets = packed(lengths, shape.dim)
        for run in (run_rows, first):
            wanted = run(reference, x, offsets, modules)
            torch.testing.assert_close(run(ours, x, offsets, modules), wanted, **CLOSE)
    shapes, held = ours.graphs.held()
    assert shapes == 4  # of four texts and of three, for each of both reads
    assert held > 0


@pytest.mark.parametrize("device", DEVICES)
def test_a_shape_is_captured_when_it_recurs(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "RECURS", 3)
    ours, (x, offsets) = replaying(device_of(device)), packed((9, 7), BERT.dim)
    mine, wanted = module(BERT, "lora", 4), None
    for turn in range(5):
        got = run_rows(ours, x, offsets, [mine, None])
        assert ours.graphs.held()[0] == (turn >= 2)
        torch.testing.assert_close(got, got if wanted is None else wanted, **CLOSE)
        wanted = got


@pytest.mark.parametrize("device", DEVICES)
def test_a_text_is_the_same_alone_and_in_any_batch(device: str) -> None:
    lengths = (9, 16, 3, 12, 1)
    ours, (x, offsets) = replaying(device_of(device, 5)), packed(lengths, BERT.dim)
    modules: Modules = [module(BERT, "lora+parallel", r) for r in (2, 8, 40)] + [None, module(BERT, "ln", 1)]
    rows, firsts = run_rows(ours, x, offsets, modules), first(ours, x, offsets, modules)
    for i, mine in enumerate(modules):
        a, b = offsets[i], offsets[i + 1]
        torch.testing.assert_close(run_rows(ours, x[a:b], [0, b - a], [mine]), rows[a:b], **CLOSE)
        torch.testing.assert_close(first(ours, x[a:b], [0, b - a], [mine]), firsts[i : i + 1], **CLOSE)


@pytest.mark.parametrize("device", DEVICES)
def test_not_a_number_stays_with_its_text(device: str) -> None:
    """Also in the next batch of the shape, whose padding holds what this one left."""
    ours, (x, offsets) = replaying(device_of(device)), packed((6, 9, 8), BERT.dim)
    mine, broken = module(BERT, "houlsby+ln", 8), module(BERT, "houlsby+ln", 8)
    next(p for name, p in broken.named_parameters() if name.endswith("down")).fill_(torch.nan)
    wanted = run_rows(PackedExecutor(upper(BERT), BERT), x[6:], [0, 9, 17], [mine, None])
    got = run_rows(ours, x, offsets, [broken, mine, None])
    assert not torch.isfinite(got[:6]).any(dim=1).any()
    torch.testing.assert_close(got[6:], wanted, **CLOSE)
    again = run_rows(ours, x[6:], [0, 9, 17], [mine, None])
    torch.testing.assert_close(again, wanted, **CLOSE)
    assert ours.graphs.held()[0] == 2


def rounds(count: int, seed: int, tenants: list[TenantModule]) -> list[tuple[Tensor, list[int], Modules]]:
    """Batches of one shape by ever other tenants."""
    draw, made = random.Random(seed), []
    for _ in range(count):
        x, offsets = packed((draw.randint(1, 8), draw.randint(1, 8)), BERT.dim)
        made.append((x, offsets, list[TenantModule | None](draw.sample(tenants, 2))))
    return made


@pytest.fixture(scope="module")
def tenants() -> list[TenantModule]:
    return [module(BERT, "lora", rank) for rank in range(2, 8)]


def all_right(device: Any, many: list[Any], wanted: list[Tensor]) -> bool:
    """Return whether batches that drive each other's modules out of two slots are right when enqueued at
    once."""
    ours, started = replaying(device, slots=2), []
    for i, (x, offsets, modules) in enumerate(many):
        started += ours.start(KEY, Rows.packed(x, offsets), [ours.packed(m) for m in modules])
        ours.prefetch(many[(i + 1) % len(many)][2])
    assert ours.graphs.held()[0] == 1
    answers = []
    for left, there in started:
        there.wait()
        answers.append(left.last)
    return all(torch.allclose(a, w, atol=2e-5, rtol=0) for a, w in zip(answers, wanted, strict=True))


def test_modules_that_leave_between_replays_and_a_wait_that_is_missing(tenants: list[TenantModule]) -> None:
    many, reference = rounds(6, 1, tenants), PackedExecutor(upper(BERT), BERT)
    wanted = [run_rows(reference, *batch) for batch in many]
    assert all(all_right(Twin(seed), many, wanted) for seed in range(8))
    for copies in (True, False):
        assert not all(all_right(Careless(seed, copies), many, wanted) for seed in range(8))


@pytest.mark.parametrize("device", DEVICES)
def test_threads_replay_graphs_of_their_own(device: str, tenants: list[TenantModule]) -> None:
    ours, reference = replaying(device_of(device, 7), slots=4), PackedExecutor(upper(BERT), BERT)
    both = threading.Barrier(2)

    def work(seed: int) -> int:
        for x, offsets, modules in rounds(8, seed, tenants):
            got, wanted = (run_rows(e, x, offsets, modules) for e in (ours, reference))
            torch.testing.assert_close(got, wanted, atol=2e-5, rtol=0)
        both.wait(60)
        held = ours.graphs.held()[0]
        both.wait(60)
        return held

    assert on_two_threads(work) == [2, 2]


@pytest.mark.gpu
def test_no_replay_waits_for_the_device(tenants: list[TenantModule]) -> None:
    """torch raises at any operation that would make the host wait, also while a shape is captured."""
    ours, (x, offsets) = replaying(device_of("gpu"), slots=2), packed((5, 9), BERT.dim)
    pinned = ours.space(len(x))
    pinned.copy_(x)
    for modules in (tenants[:2], tenants[2:4]):
        in_memory = [ours.packed(m) for m in modules]
        torch.cuda.set_sync_debug_mode("error")
        try:
            ours.prefetch(modules)
            started = ours.start(KEY, Rows.packed(pinned, offsets), in_memory)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        for _, there in started:
            there.wait()
    assert ours.graphs.held()[0] == 1


def test_a_capture_that_fails_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    twin, tried = Twin(2), []
    ours, (x, offsets), mine = replaying(twin), packed((5, 9), BERT.dim), module(BERT, "lora", 8)
    wanted = run_rows(PackedExecutor(upper(BERT), BERT), x, offsets, [mine, None])
    capture = type(twin.compute()).capture

    def failing(stream: Any, name: str, make: Any, pool: Any) -> Any:
        tried.append(name)
        if name == f"layer {DEPTH}":
            return capture(stream, name, lambda: float(make().sum()), pool)  # a number for the host
        return capture(stream, name, make, pool)

    monkeypatch.setattr(type(twin.compute()), "capture", failing)
    with caplog.at_level(logging.WARNING, "hmi.execution"):
        for _ in range(3):
            torch.testing.assert_close(run_rows(ours, x, offsets, [mine, None]), wanted, **CLOSE)
    assert tried == [f"layer {i + 1}" for i in range(DEPTH)]
    assert "not permitted when stream is capturing" in caplog.text
    assert ours.graphs.held() == (0, 0)


def run(ours: CudaExecutor, *lengths: int) -> None:
    """Batches of one text each, of these lengths, beside packed torch."""
    reference = PackedExecutor(upper(BERT), BERT)
    for length in lengths:
        x, offsets = packed((length,), BERT.dim)
        wanted = run_rows(reference, x, offsets, [None])
        torch.testing.assert_close(run_rows(ours, x, offsets, [None]), wanted, **CLOSE)


def held(ours: CudaExecutor) -> list[list[int]]:
    """The rows of each thread's shapes."""
    return sorted([shape.rows for shape in mine.captured] for mine in ours.graphs._threads)


def test_graphs_are_bounded_and_the_least_recently_used_go(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = replaying(Twin(3))
    monkeypatch.setattr(graphs, "MOST_SHAPES", 2)
    run(ours, 16, 32, 16, 48)
    assert held(ours) == [[16, 48]]
    (mine,) = ours.graphs._threads
    oldest = next(iter(mine.captured.values())).bytes()
    monkeypatch.setattr(graphs, "MOST_BYTES", ours.graphs.held()[1] - oldest + 2 * 4 * 64 * BERT.dim)
    run(ours, 64)
    assert held(ours) == [[48, 64]]


def test_a_captured_shape_gives_way_after_many_others_were_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = replaying(Twin())
    monkeypatch.setattr(graphs, "MOST_SEEN", 1)
    monkeypatch.setattr(graphs, "MOST_SHAPES", 1)
    run(ours, 16, 32)
    assert held(ours) == [[32]]


def test_the_memory_is_measured_once_after_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    twin, measured = Twin(), list[Any]()
    ours, kind = replaying(twin), type(twin.pool())
    monkeypatch.setattr(kind, "bytes", lambda pool: [measured.append(pool), 1][1])
    run(ours, 16, 32, 48, 64, 16)
    assert ours.graphs.held() == ours.graphs.held()
    assert ours.graphs.held()[0] == len(measured) == 4
    assert len(set(map(id, measured))) == 1, "a thread's shapes share a pool"


def test_the_memory_is_that_of_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread's part becomes smaller when another begins."""
    ours = replaying(Twin())
    run(ours, 16, 32)
    (mine,) = ours.graphs._threads
    least = ours.graphs.held()[1] - next(iter(mine.captured.values())).bytes()
    monkeypatch.setattr(graphs, "MOST_BYTES", most := 2 * least)
    with ThreadPoolExecutor(1) as other:
        other.submit(run, ours, 16).result()
        assert held(ours) == [[16], [16, 32]]
        run(ours, 16)
        assert held(ours) == [[16], [16]]
        assert ours.graphs.held()[1] <= most


def test_a_shape_that_would_take_more_than_its_part_is_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = replaying(Twin())
    monkeypatch.setattr(graphs, "MOST_BYTES", graphs.POOL * 2 * 4 * 32 * BERT.dim)
    run(ours, 16, 64)
    assert held(ours) == [[16]]


def test_what_no_graph_can_do_runs_operation_by_operation() -> None:
    shape_of = replaying(Twin()).graphs.shape_of
    layout = executor(Twin()).packed(module(BERT, "lora", 33)).layout
    assert shape_of("cls", [0, 9, 20], [layout], kernels=False) is None
    assert shape_of("cls", [0, 9, 20], [], kernels=False) is not None
    found = shape_of("cls", [0, 9, 20], [layout], kernels=True)
    assert found is not None
    assert (found.rows, found.texts, found.longest, found.rank) == (24, 2, 16, 64)
    unlike = [0, *range(1, 40), 140]
    assert shape_of("cls", unlike, [], kernels=True) is None
    assert shape_of("cls", list(range(0, graphs.MOST_ROWS + 9, 8)), [], kernels=True) is None
    assert [rounded(n) for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 17, 25)] == [
        1, 2, 3, 4, 6, 6, 8, 8, 12, 16, 24, 32
    ]  # fmt: skip


class TestTheTwin:
    """The twin refuses what a capture does not permit, and freezes what a replay does not know."""

    def test_a_replay_reads_memory_as_it_is_and_the_host_as_it_was(self) -> None:
        twin, host = Twin(1), [2.0]
        stream = twin.compute()
        x, out = twin.empty((3,), torch.float32), twin.empty((3,), torch.float32)
        graph = stream.capture("", lambda: out.copy_(x * host[0]), twin.pool())
        host[0] = 5.0
        for value in (1.0, 4.0):
            stream.copy(torch.full((3,), value), x, "")
            stream.replay(graph, "")
            stream.record().wait()
            assert out.tolist() == [2 * value] * 3

    def test_what_is_in_the_graphs_own_memory_is_lost(self) -> None:
        twin, kept = Twin(1), list[Tensor]()
        stream, x = twin.compute(), torch.ones(3)
        graph = stream.capture("", lambda: kept.append(x * 2), twin.pool())
        stream.replay(graph, "")
        stream.record().wait()
        lost = [bool(t.isnan().all()) for t in kept]
        assert sorted(lost) == [False, True]  # `make` also ran before its capture

    @pytest.mark.parametrize("what", ["number", "memory", "pinned", "copy", "event", "list"])
    def test_a_capture_does_not_permit(self, what: str) -> None:
        twin, x = Twin(1), torch.ones(3)
        stream = twin.compute()
        work: dict[str, Any] = {
            "number": lambda: x.sum().item(),
            "memory": lambda: twin.empty((3,), torch.float32),
            "pinned": lambda: twin.pinned((3,), torch.float32),
            "copy": lambda: stream.copy(x, x, ""),
            "event": stream.record,
            "list": lambda: torch.tensor([1.0]),
        }
        made = list[Any]()

        def make() -> None:
            if made:
                work[what]()
            made.append(1)

        stream.capture("", lambda: None, twin.pool())
        made.append(1)
        with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
            stream.capture("", make, twin.pool())
