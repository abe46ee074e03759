"""The choice of the device's executor: what is wrong on a device is not taken."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from hmi.config import Settings
from hmi.errors import InvalidInput
from hmi.execution.cuda.choose import (
    check_device,
    cuda_decoder,
    cuda_executor,
    precision_on_device,
    sound_decoder,
    sound_executor,
)
from hmi.execution.cuda.twin import Twin
from hmi.execution.decoding.choose import step_executor
from hmi.execution.decoding.paged import page_bytes
from hmi.execution.guarded import GuardedSteps
from hmi.model.sources.generative_root import UpperDecoder
from hmi.model.sources.root import Root
from tests.hmi.execution.test_decoding_steps import tiny
from tests.hmi.execution.test_fused import BERT, upper
from tests.modules_twin import CpuLauncher


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hmi.execution.cuda.choose.ROUNDS", 1)
    monkeypatch.setattr("hmi.execution.cuda.choose.LENGTHS", (9, 40, 3, 9))
    monkeypatch.setattr("hmi.execution.cuda.choose.SHORT", (9, 12, 3, 16))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_way_that_agrees_with_the_reference_is_taken(precision: str) -> None:
    twin = Twin(1)
    found = sound_executor(upper(BERT), BERT, precision, twin, 1 << 20, twin.launcher(CpuLauncher()))
    assert found.precision == precision
    assert found.ways.name in ("loop", "groups", "kernel")


@pytest.fixture(scope="module")
def language_model() -> UpperDecoder:
    torch.manual_seed(4)
    return UpperDecoder(tiny("qwen3"), 1).eval().requires_grad_(False)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_language_model_is_written_by_a_way_that_agrees(
    language_model: UpperDecoder, precision: str
) -> None:
    twin = Twin(1)
    found = sound_decoder(language_model, 70, precision, twin, 1 << 20, twin.launcher(CpuLauncher()))
    assert (found.precision, found.pages) == (precision, 70)
    assert found.ways.name in ("loop", "groups", "kernel")


class Wrong(CpuLauncher):
    """Kernels that leave a part out."""

    def launch(self, kernel: str, blocks: int, arguments: tuple[int, ...], stream: int | None) -> None:
        super().launch(kernel, blocks - 1, arguments, stream)


def test_kernels_that_are_wrong_here_are_not_taken(
    caplog: pytest.LogCaptureFixture, language_model: UpperDecoder
) -> None:
    twin = Twin(1)
    with caplog.at_level(logging.ERROR, "hmi.execution"):
        found = sound_executor(upper(BERT), BERT, "fp32", twin, 1 << 20, twin.launcher(Wrong()))
        writes = sound_decoder(language_model, 64, "fp32", twin, 1 << 20, twin.launcher(Wrong()))
    assert {found.ways.name, writes.ways.name} <= {"loop", "groups"}
    assert caplog.text.count("modules by kernel are wrong on this device") == 2


class Forgetful(Twin):
    """A twin whose replays leave the kernels out."""

    forgets = True

    def enqueue(self, stream: Any, op: Any) -> None:
        if not (self.forgets and isinstance(op.run, partial) and "launch" in str(op.run.args)):
            super().enqueue(stream, op)


@pytest.mark.parametrize("forgets", [False, True])
def test_graphs_are_taken_if_they_are_right_and_faster(
    forgets: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    twin, seconds = Forgetful(1), iter(range(100, 0, -1))
    twin.forgets = forgets

    def each_is_faster(work: Callable[[], object]) -> float:
        work()
        return float(next(seconds))

    monkeypatch.setattr("hmi.execution.cuda.choose._seconds", each_is_faster)
    with caplog.at_level(logging.ERROR, "hmi.execution"):
        found = sound_executor(upper(BERT), BERT, "fp32", twin, 1 << 20, twin.launcher(CpuLauncher()))
    assert found.graphs.on is not forgets
    assert ("graphs are wrong on this device" in caplog.text) == forgets
    assert found.graphs.held() == (0, 0)


def test_a_device_on_which_nothing_agrees_is_refused(
    monkeypatch: pytest.MonkeyPatch, language_model: UpperDecoder
) -> None:
    monkeypatch.setattr("hmi.execution.cuda.layout.LORA_SCALE", -30.0)
    with pytest.raises(RuntimeError, match="no way of computing modules agrees"):
        sound_executor(upper(BERT), BERT, "fp32", Twin(1), 1 << 20, None)
    with pytest.raises(RuntimeError, match="no way of computing modules agrees"):
        sound_decoder(language_model, 64, "fp32", Twin(1), 1 << 20, None)


def test_the_precision_of_a_device() -> None:
    assert precision_on_device("auto", True) == "bf16"
    assert precision_on_device("auto", False) == precision_on_device("fp32", True) == "fp32"
    assert precision_on_device("bf16", True) == "bf16"
    assert precision_on_device("bf16", False) is None
    assert precision_on_device("int8", True) is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_device_the_cpu_runs_and_cuda_is_refused(
    tiny_root: Root, language_model: UpperDecoder
) -> None:
    check_device("auto")
    check_device("cpu")
    with pytest.raises(InvalidInput, match="nvidia-smi"):
        check_device("cuda")
    assert cuda_executor(tiny_root, "auto", "auto") is None
    assert cuda_decoder(language_model, "auto", "auto", 1 << 20) is None


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(InvalidInput, match="use auto, cpu or cuda"):
        Settings(device="tpu")


@pytest.mark.gpu
def test_on_a_device(tiny_root: Root, language_model: UpperDecoder) -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device")
    found = cuda_executor(tiny_root, "auto", "cuda", 1 << 20)
    assert found is not None
    assert found[1] in ("cuda bf16", "cuda fp32")
    writes = step_executor(language_model, "auto", 1 << 22, "cuda", 1 << 20)
    assert isinstance(writes, GuardedSteps)
    assert writes.pages == (1 << 22) // page_bytes(language_model, 2 if found[1] == "cuda bf16" else 4)
