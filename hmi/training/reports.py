"""How trainings report: what a caller gives to show progress."""

from __future__ import annotations

from collections.abc import Callable

StepReport = Callable[[int, int, float], None]
"""(step, of, loss), after each step; raises to stop the training."""
PhaseReport = Callable[[str, int, int, float | None], None]
"""(phase, step, of, loss)."""
