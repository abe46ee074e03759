"""One call of compiled code a layer, in float32, bfloat16 or int8: `hmi_kernels.encoder` behind the
interface."""

from __future__ import annotations

from hmi.execution.fused.executor import FusedExecutor

__all__ = ["FusedExecutor"]
