"""Execution stages: ways to spend less on a batch, plugged in between its layers, under one planner.

`base` has the interface of a stage, and `planner` chooses the next batch and its settings.
docs/design/0007-rooms.md shows how to write a stage.
"""

from __future__ import annotations

from hmi.stages.base import OFF, Batch, Effect, Setting, Shape, Stage, Text
from hmi.stages.planner import Candidate, Measured, Plan, Planner, RoundRobin

__all__ = [
    "OFF",
    "Batch",
    "Candidate",
    "Effect",
    "Measured",
    "Plan",
    "Planner",
    "RoundRobin",
    "Setting",
    "Shape",
    "Stage",
    "Text",
]
