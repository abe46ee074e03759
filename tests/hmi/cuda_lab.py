"""Executors on the twin of a device, and on a GPU where there is one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hmi.execution.cuda import CudaExecutor, Device
from hmi.execution.cuda.layout import lora_size
from hmi.execution.cuda.torch_device import CudaDevice
from hmi.execution.cuda.twin import Twin
from hmi.execution.cuda.ways import Ways
from tests.hmi.test_fused import BERT, DEPTH, upper

DEVICES = ["twin", pytest.param("gpu", marks=pytest.mark.gpu)]


def device_of(kind: str, seed: int = 0) -> Device:
    """The twin with a seed, or the GPU."""
    if kind == "twin":
        return Twin(seed)
    if not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device")
    return CudaDevice()


def executor(device: Device, shape: Any = BERT, *, slots: int = 64, way: Any = "loop", **kwargs: Any) -> Any:
    """An executor in fp32 with so many slots."""
    precision = kwargs.pop("precision", "fp32")
    size = lora_size(8, DEPTH, shape) * (4 if precision == "fp32" else 2)
    ways = way if isinstance(way, Ways) else Ways(way)
    layers = kwargs.pop("layers", None) or upper(shape)
    return CudaExecutor(layers, shape, precision, device, slot_bytes=slots * size, ways=ways, **kwargs)
