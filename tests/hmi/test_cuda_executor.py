"""The CUDA executor against packed torch, on the twin and on a GPU where there is one."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from hmi.execution import BatchKey, Rows
from hmi.execution.batch import offsets_of
from hmi.execution.cuda.twin import Twin
from hmi.execution.packed import PackedExecutor, run_rows
from hmi.model.root import Root
from hmi.model.shape import EncoderShape
from hmi.modulespec import Kind
from tests.hmi.cuda_lab import DEVICES, device_of, executor
from tests.hmi.test_execution import Drop, Leave, Merge, key
from tests.hmi.test_fused import BERT, LENGTHS, MPNET, first, mixed, module, packed, upper
from tests.modules import root_module

CLOSE = {"atol": 2e-5, "rtol": 0}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [BERT, MPNET], ids=["bert", "mpnet"])
@pytest.mark.parametrize("way", ["loop", "groups"])
@pytest.mark.parametrize("kind", get_args(Kind))
def test_fp32_equals_packed_torch(device: str, shape: EncoderShape, way: str, kind: Kind) -> None:
    layers, (x, offsets) = upper(shape), packed(LENGTHS, shape.dim)
    modules = mixed(shape, kind)
    ours = executor(device_of(device, seed=len(kind)), shape, way=way)
    reference = PackedExecutor(layers, shape)
    for run in (run_rows, first):
        wanted = run(reference, x, offsets, modules)
        torch.testing.assert_close(run(ours, x, offsets, modules), wanted, **CLOSE)
