"""Packed torch on the CPU: the tokens of all tenants in one array, no padding computed between texts."""

from __future__ import annotations

from hmi.execution.packed.executor import PackedExecutor, pack_upper, run_classified, run_rows

__all__ = ["PackedExecutor", "pack_upper", "run_classified", "run_rows"]
