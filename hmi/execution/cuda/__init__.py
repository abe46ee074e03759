"""The executor on a CUDA device: streams, slots for tenants' modules, batched changes.

`Device` is the interface to streams, events and memory. `torch_device.TorchDevice` is the device itself;
`twin.Twin` runs the same code on the CPU, with every stream as late or as early as the events permit.
docs/design/0011-cuda-path.md has the decisions and the rules of order.
"""

from __future__ import annotations

from hmi.execution.cuda.device import Device, Stream, StreamEvent
from hmi.execution.cuda.executor import CudaExecutor

__all__ = ["CudaExecutor", "Device", "Stream", "StreamEvent"]
