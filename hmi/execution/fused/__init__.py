"""One call of compiled code a layer, in float32, bfloat16 or int8: `hmi_kernels.encoder` behind the
interface."""

from __future__ import annotations

from hmi.execution.fused.executor import FusedExecutor
from hmi.execution.fused.weights import Precision, available, precisions

__all__ = ["FusedExecutor", "Precision", "available", "precisions"]
