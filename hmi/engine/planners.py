"""The planner of a server, by its settings."""

from __future__ import annotations

from hmi.config import Settings
from hmi.stages import Planner, RoundRobin, Stage
from hmi.stages.cascade.stage import CascadeInside
from hmi.stages.early_exit.stage import EarlyExit
from hmi.stores.layout import Layout


def planner_of(settings: Settings, layout: Layout) -> Planner:
    """Return the planner over the stages that the settings name. Without token adaptation turns decide."""
    stages: list[Stage] = []
    if settings.runs("exits"):
        stages.append(EarlyExit(layout.exits))
    if settings.runs("cascades"):
        stages.append(CascadeInside(layout.cascades("inside")))
    return RoundRobin(stages)
