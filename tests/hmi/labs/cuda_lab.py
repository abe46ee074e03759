"""Executors on the twin of a device, and on a GPU where there is one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
import torch
from hmi_kernels.modules.device import CupyLauncher

from hmi.execution import Rows
from hmi.execution.cuda import CudaExecutor, Device
from hmi.execution.cuda.layout import lora_size
from hmi.execution.cuda.torch_device import TorchDevice
from hmi.execution.cuda.twin import Twin
from hmi.execution.cuda.ways import Ways
from tests.hmi.execution.test_fused import BERT, DEPTH, upper
from tests.modules_twin import CpuLauncher

DEVICES = ["twin", pytest.param("gpu", marks=pytest.mark.gpu)]
WAYS = ["loop", "groups", "kernel"]
T = TypeVar("T")


class Broken:
    """A hook that fails."""

    at = frozenset({1})

    def __call__(self, layer: int, rows: Rows) -> Any:
        raise RuntimeError("the stage is broken")

    def ended(self, texts: Any, outputs: Any) -> Any:
        raise AssertionError("no text came to the end")


def on_two_threads(work: Callable[[int], T]) -> list[T]:
    """Run work(1) and work(2) at once; return their results, or raise the first error of one."""
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(work, (1, 2)))


def device_of(kind: str, seed: int = 0) -> Device:
    """The twin with a seed, or the GPU."""
    if kind == "twin":
        return Twin(seed)
    if not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device")
    return TorchDevice(kernels=CupyLauncher())


def executor(device: Device, shape: Any = BERT, *, slots: int = 64, way: Any = "loop", **kwargs: Any) -> Any:
    """An executor in fp32 with so many slots."""
    precision = kwargs.pop("precision", "fp32")
    size = lora_size(8, DEPTH, shape) * (4 if precision == "fp32" else 2)
    layers = kwargs.pop("layers", None) or upper(shape)
    return CudaExecutor(
        layers, shape, precision, device, slot_bytes=slots * size, ways=ways_of(way, device), **kwargs
    )


def ways_of(name: Any, device: Device) -> Ways:
    """The way of that name; its kernels compiled for the device, or for the CPU."""
    if name != "kernel":
        return Ways(name)
    return Ways(name, device.launcher(CpuLauncher()) if isinstance(device, Twin) else CupyLauncher())
