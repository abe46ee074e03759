"""Models' objectives: the bounds that a tenant sets for answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hmi.core import DomainId, ModelId, ModelRecord, Objective
from hmi.errors import InvalidInput
from hmi.stores.registry import Registry


def set_objective(
    registry: Registry,
    model: ModelId,
    change: Callable[[Objective], Mapping[str, Any]],
    others: Mapping[str, Any],
) -> ModelRecord:
    """See `Manager.set_objective`."""
    if others.get("depth") == "full":
        full_root(registry, DomainId.parse(registry.model(model).live.domain))

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


def full_root(registry: Registry, branch: DomainId) -> str:
    """The root that computes all layers of the domain's source. Raises InvalidInput if there is none."""
    found = registry.full_root(branch.root)
    if found is None:
        source = registry.root(branch.root).source.get("name")
        raise InvalidInput(
            f"no root computes all layers of {source}: an administrator imports one "
            f"(hmi root import {branch.root}-full {source} --split 0)",
            field="depth",
        )
    return found.name
