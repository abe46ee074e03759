"""Models' objectives: the bounds that a tenant sets for answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hmi.core import ModelId, ModelRecord, Objective
from hmi.errors import InvalidInput
from hmi.stores.registry import Registry


def set_objective(
    registry: Registry, model: ModelId, change: Callable[[Objective], Mapping[str, Any]]
) -> ModelRecord:
    """See `Manager.set_objective`."""

    def changed(record: ModelRecord) -> ModelRecord:
        objective = Objective(**change(record.objective))
        if objective.agreement is not None and record.live.task == "embedding":
            field = "objective.agreement"
            raise InvalidInput(
                f"{field}: {model} is an embedding, which has neither early exits nor a cascade: leave "
                "agreement out",
                field=field,
            )
        return record.model_copy(update={"objective": objective})

    return registry.change_model(model, changed)
