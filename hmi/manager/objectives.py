"""What a tenant sets for a model: the bounds for answers, what it is to know, its depth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hmi.core import DomainId, ModelId, ModelRecord, Objective
from hmi.errors import InvalidInput
from hmi.manager.depth import root_for
from hmi.stores.records.registry import Registry


def set_objective(
    registry: Registry,
    model: ModelId,
    change: Callable[[Objective], Mapping[str, Any]],
    others: Mapping[str, Any],
) -> ModelRecord:
    """See `Manager.set_objective`."""
    if "depth" in others:
        live = registry.model(model).live
        root_for(registry, others["depth"], DomainId.parse(live.domain), live.root, "depth")

    def changed(record: ModelRecord) -> ModelRecord:
        objective = Objective(**change(record.objective))
        for field in ("agreement", "agreement_under_load"):
            if getattr(objective, field) is not None and record.live.task == "embedding":
                raise InvalidInput(
                    f"objective.{field}: {model} is an embedding, which has neither early exits nor a "
                    f"cascade, and whose tokens are not adapted: leave {field} out",
                    field=f"objective.{field}",
                )
        if others.get("known_share") is not None and record.live.task == "embedding":
            raise InvalidInput(
                f"known_share: {model} is an embedding, which is not trained on texts of its own: leave "
                "known_share out",
                field="known_share",
            )
        return record.model_copy(update={**others, "objective": objective})

    return registry.change_model(model, changed)
