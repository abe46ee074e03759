"""The callbacks by which trainings report progress."""

from __future__ import annotations

from collections.abc import Callable

StepReport = Callable[[int, int, float], None]
"""Called after each step with (step, number of steps, loss). It may raise to stop the training."""
PhaseReport = Callable[[str, int, int, float | None], None]
"""Called with (phase, step, number of steps, loss)."""
