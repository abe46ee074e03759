"""The packed executor: torch on the CPU, with the tokens of all tenants in one array without padding."""

from __future__ import annotations

from hmi.execution.packed.executor import PackedExecutor, pack_upper, run_classified, run_rows

__all__ = ["PackedExecutor", "pack_upper", "run_classified", "run_rows"]
