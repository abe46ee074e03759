"""The compiled executor: `hmi_kernels.encoder` behind the interface `Executor`.

Each layer is one call of compiled code, in float32, bfloat16 or int8.
"""

from __future__ import annotations

from hmi.execution.fused.executor import FusedExecutor

__all__ = ["FusedExecutor"]
