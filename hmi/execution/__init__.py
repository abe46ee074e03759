"""Execution of a batch through a root's upper layers.

Executors know rows, modules and hooks, but no tenant or request. `batch` has the data types that executors
and stages share, `base` the interfaces, and `choose` picks an executor for a root.
"""

from __future__ import annotations

from hmi.execution.base import Executor, Hook, Pause, Weights, no_pause
from hmi.execution.batch import BatchKey, Left, Rows

__all__ = ["BatchKey", "Executor", "Hook", "Left", "Pause", "Rows", "Weights", "no_pause"]
