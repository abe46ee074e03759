"""A device that fails for good, as CUDA does: what it has not answered, the CPU answers."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from hmi.api.views.records import execution_view
from hmi.errors import Unavailable
from hmi.execution import BatchKey, Rows, choose
from hmi.execution.choose import REFERENCE, executor_for
from hmi.execution.cuda import CudaExecutor
from hmi.execution.cuda.decoder import CudaDecoder
from hmi.execution.cuda.twin import Twin
from hmi.execution.decoding.base import Between
from hmi.execution.decoding.plain import PlainDecoder
from hmi.execution.decoding.writing import Answer, Writing
from hmi.execution.guarded import Guarded, GuardedSteps
from hmi.execution.packed import PackedExecutor
from hmi.metrics import Metrics
from hmi.model.sources.root import Root
from hmi.model.tenant.modules import LowRankLayer, TenantModule
from tests.hmi.execution.test_cuda_executor import CLOSE
from tests.hmi.execution.test_decoding_steps import BEGIN, MODULES
from tests.hmi.execution.test_decoding_writing import Parts, parts_of, rows_of, run
from tests.hmi.execution.test_fused import BERT, module, packed, upper
from tests.hmi.labs.cuda_lab import Broken, executor

KEY = BatchKey(("", ""), "rows", exact=False)
WHY = "CUDA error: an illegal memory access was encountered"


class Faulty(Twin):
    """A twin whose work after the first `left` operations fails, and all its waits from then on."""

    def __init__(self, left: int, seed: int = 0) -> None:
        super().__init__(seed)
        self.left = left

    def enqueue(self, stream: Any, op: Any) -> None:
        self.left -= 1
        self._check()
        super().enqueue(stream, op)

    def run_until(self, event: Any) -> None:
        self._check()
        super().run_until(event)

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        self._check()
        return super().pinned(shape, dtype)

    def _check(self) -> None:
        if self.left < 0:
            raise RuntimeError(f"{WHY}\nCUDA kernel errors might be asynchronously reported")


@pytest.fixture(scope="module")
def tenants() -> list[TenantModule]:
    return [module(BERT, "lora", rank) for rank in range(2, 7)]


def answers(
    ours: Any, x: Tensor, offsets: list[int], modules: Sequence[TenantModule | None]
) -> tuple[list[int], Tensor]:
    ours.prefetch(modules)
    rows = ours.space(len(x))
    rows.copy_(x)
    lefts = list(ours.run(KEY, Rows.packed(rows, offsets), modules))
    order = [t for left in lefts for t in left.texts]
    return order, torch.cat([left.last for left in lefts])


def test_a_batch_is_answered_whole_wherever_the_device_fails(tenants: list[TenantModule]) -> None:
    """The device fails at every operation of two batches of several parts."""
    (x, offsets), layers = packed((3, 1, 4, 2, 5), BERT.dim), upper(BERT)
    cpu = PackedExecutor(layers, BERT)
    _, wanted = answers(cpu, x, offsets, tenants)
    left, ended, parts = 0, False, set[int]()
    while not ended:
        told, twin = list[str](), Faulty(left, seed=left)
        device = executor(twin, slots=2, layers=layers)
        twin.left = left
        ours = Guarded(device, cpu, told.append)
        for _ in range(2):
            order, got = answers(ours, x, offsets, tenants)
            assert order == [0, 1, 2, 3, 4]
            torch.testing.assert_close(got, wanted, **CLOSE)
            ours.prepare(module(BERT, "lora", 8))
        ended = not told
        assert told == ([] if ended else [WHY])
        parts.add(left)
        left += 7
    assert len(parts) > 10


@pytest.fixture(scope="module")
def language_model() -> Parts:
    return parts_of(3)


def guarded(parts: Parts, twin: Twin, told: list[str]) -> tuple[GuardedSteps, Writing]:
    """The executor on a device of 12 pages, and its sequences."""
    device = CudaDecoder(parts[1], 12, "fp32", twin)
    ours = GuardedSteps(device, partial(PlainDecoder, parts[1]), told.append)
    return ours, Writing(ours, rows_of(parts[0]), step_rows=40)


def drafts() -> list[Answer]:
    """Their pages are more than 12 together."""
    modules = enumerate([*MODULES, None])
    return [Answer(i, [BEGIN, *range(2, 44 - 9 * i)], 9, tenant=str(i), module=m) for i, m in modules]


def test_texts_are_written_to_their_end_wherever_the_device_fails(language_model: Parts) -> None:
    """Also between two layers, where others' prompts run."""
    wanted = drafts()
    run(Writing(PlainDecoder(language_model[1], 64), rows_of(language_model[0])), wanted)
    left, ended, steps = 0, False, 0
    while not ended:
        told, twin, found = list[str](), Faulty(1 << 30, seed=left), drafts()
        ours, writing = guarded(language_model, twin, told)
        twin.left = left
        waiting = list(found)

        def between(waiting: list[Answer] = waiting, writing: Writing = writing) -> None:
            if waiting:
                writing.add(waiting.pop(0))
            writing.let_in()

        with torch.inference_mode():
            writing.add(waiting.pop(0))
            while len(writing) or waiting:
                writing.step(Between(between))
                between()
        assert [answer.ids for answer in found] == [answer.ids for answer in wanted]
        assert writing.arena.room == ours.pages == 12
        ended = not told
        assert told == ([] if ended else [WHY])
        left, steps = left + (11 if left < 99 else 60), steps + 1
    assert steps > 10


def test_a_step_without_room_on_the_device_is_refused_and_the_device_goes_on(
    language_model: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, twin = list[str](), Twin()
    _, writing = guarded(language_model, twin, told)
    writing.add(drafts()[0])
    with monkeypatch.context() as full, torch.inference_mode():

        def none_left(*_: Any) -> Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory")

        full.setattr(twin, "empty", none_left)
        with pytest.raises(Unavailable, match="too little memory to write"):
            writing.step()
    run(writing, [])
    assert told == []


def test_the_errors_of_a_batch_are_its_own(tenants: list[TenantModule]) -> None:
    told, (x, offsets) = list[str](), packed((3, 4), BERT.dim)
    device = executor(Twin())
    ours = Guarded(device, PackedExecutor(upper(BERT), BERT), told.append)
    with pytest.raises(RuntimeError, match="the stage is broken"):
        list(ours.run(KEY, Rows.packed(x, offsets), tenants[:2], [Broken()]))
    assert told == []
    ours_too = GuardedSteps(CudaDecoder(parts_of(3)[1], 4, "fp32", Twin()), never, told.append)
    with pytest.raises(ValueError, match="the layers have no site 7-q"):
        ours_too.prepare(TenantModule({"7-q": LowRankLayer(*torch.zeros(2, 4, 4))}))
    assert told == []


def never(_: int) -> PlainDecoder:
    raise AssertionError("the device works")


def test_a_batch_without_room_on_the_device_runs_on_the_cpu(
    tenants: list[TenantModule], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told, twin, (x, offsets) = list[str](), Twin(), packed((3, 4), BERT.dim)
    ours = Guarded(executor(twin), PackedExecutor(upper(BERT), BERT), told.append)
    _, wanted = answers(ours, x, offsets, tenants[:2])
    ran = len(twin.ran)
    with monkeypatch.context() as full:

        def none_left(*_: Any) -> Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory")

        full.setattr(twin, "empty", none_left)
        full.setattr(twin, "check", none_left)  # it is so full that not even one number fits
        torch.testing.assert_close(answers(ours, x, offsets, tenants[:2])[1], wanted, **CLOSE)
    assert "the device's memory is full" in caplog.text
    assert (told, len(twin.ran)) == ([], ran)
    answers(ours, x, offsets, tenants[:2])
    assert len(twin.ran) > ran


def test_a_root_leaves_its_device_and_says_so(
    tiny_root: Root, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    twin = Faulty(1000)

    def on_device(root: Root, *_: Any) -> tuple[CudaExecutor, str]:
        return CudaExecutor(root.upper, root.info.shape, "fp32", twin), "cuda fp32"

    monkeypatch.setattr(choose, "_on_device", on_device)
    chosen = executor_for(tiny_root)
    metrics = Metrics()
    metrics.watch_executors(lambda: [("tiny", chosen.name, chosen.measured, chosen.fault)])
    shown = execution_view(None, "auto", (chosen.name, chosen.fault))
    assert shown is not None
    assert (shown.executor, shown.precision, shown.fault, shown.measured) == ("cuda fp32", "fp32", None, [])
    assert 'hmi_device_lost{root="tiny"} 0.0' in metrics.render().decode()

    x, offsets = packed((3, 4), tiny_root.dim)
    _, there = answers(chosen, x, offsets, [None, None])
    twin.left = 0
    with caplog.at_level(logging.ERROR, "hmi.execution"):
        _, here = answers(chosen, x, offsets, [None, None])
    torch.testing.assert_close(here, there, **CLOSE)
    assert (chosen.name, chosen.fault) == (REFERENCE, WHY)
    assert f"runs on the CPU from now on: its device has failed ({WHY})" in caplog.text
    text = metrics.render().decode()
    assert 'hmi_device_lost{root="tiny"} 1.0' in text
    assert f'hmi_executor{{executor="{REFERENCE}",root="tiny"}} 1.0' in text
    shown = execution_view(None, "auto", (chosen.name, chosen.fault))
    assert shown is not None
    assert (shown.executor, shown.fault) == (REFERENCE, WHY)


def test_the_memory_of_a_device_is_freed_with_its_root(
    tiny_root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[CudaExecutor]] = []

    def on_device(root: Root, *_: Any) -> tuple[CudaExecutor, str]:
        ours = CudaExecutor(root.upper, root.info.shape, "fp32", Twin())
        made.append(weakref.ref(ours))
        return ours, "cuda fp32"

    monkeypatch.setattr(choose, "_on_device", on_device)
    gc.disable()
    try:
        chosen = executor_for(tiny_root)
        answers(chosen, *packed((3, 4), tiny_root.dim), [None, None])
        del chosen
        assert made[0]() is None
    finally:
        gc.enable()


async def test_what_waits_for_a_device_counts_as_its_time(tenants: list[TenantModule]) -> None:
    ours, (x, offsets) = executor(Twin()), packed((3, 4), BERT.dim)

    class Slow(Twin):
        def run_until(self, event: Any) -> None:
            time.sleep(0.05)
            super().run_until(event)

    slow = executor(Slow())
    for one, least in ((ours, 0.0), (slow, 0.05)):
        lefts = await asyncio.to_thread(lambda o=one: list(o.run(KEY, Rows.packed(x, offsets), tenants[:2])))
        assert sum(left.waited_s for left in lefts) >= least
