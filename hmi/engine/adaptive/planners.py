"""The planner of a server, by its settings."""

from __future__ import annotations

from hmi.config import Settings
from hmi.engine.adaptive.stage_costs import StageCosts
from hmi.stages.base import Stage
from hmi.stages.cascade.stage import CascadeInside
from hmi.stages.early_exit.stage import EarlyExit
from hmi.stages.planner import Planner, RoundRobin
from hmi.stages.planning.pareto import ParetoPlanner
from hmi.stages.token_adaptation.stage import TokenAdaptation
from hmi.stores.layout import Layout
from hmi.stores.profiles import StageProfiles


def planner_of(settings: Settings, layout: Layout) -> tuple[Planner, StageCosts | None]:
    """Return the planner over the stages that the settings name, and the costs that it plans by.

    Without token adaptation, turns alone decide, and no costs are needed.
    """
    stages: list[Stage] = []
    if settings.runs("exits"):
        stages.append(EarlyExit(layout.exits))
    if settings.runs("cascades"):
        stages.append(CascadeInside(layout.cascades("inside")))
    if not settings.runs("tokens"):
        return RoundRobin(stages), None
    tokens = TokenAdaptation()
    costs = StageCosts(tokens, StageProfiles(layout))
    planner = ParetoPlanner([*stages, tokens], costs.of, streams=settings.streams)
    costs.renewed = planner.renew
    return planner, costs
