"""Publishes a version again with the same weights and something new beside them, such as ramps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hmi.core import ModelRecord, ModelVersion, now
from hmi.errors import Conflict
from hmi.jobs.model.cascade_levels import carried
from hmi.jobs.runtime.context import JobContext
from hmi.jobs.specs import FineTuneSpec

if TYPE_CHECKING:
    from torch import Tensor


def base_version(ctx: JobContext, spec: FineTuneSpec) -> ModelVersion:
    """The version that the job publishes again. Raises Conflict if it is no longer kept."""
    record = ctx.registry.model(spec.model_id)
    found = next((v for v in record.versions if v.version == spec.version), None)
    if found is None:
        raise Conflict(
            f"version {spec.version} of model {spec.model} is no longer kept: start the job again",
            field="model",
        )
    return found


def publish_again(
    ctx: JobContext,
    spec: FineTuneSpec,
    version: ModelVersion,
    tensors: Mapping[str, Tensor],
    what: str,
    **changes: Any,
) -> ModelRecord:
    """Publish `version` with these tensors. It answers from then on, unless another version does by now.

    what: the new part, in words. changes: fields of the new version's record. Raises StorageFull.
    """
    artefact, size = ctx.adapters.put(tensors, ctx.adapters.about(version.artefact))
    made = {
        "version": 0,
        "artefact": artefact,
        "bytes": size,
        "created": now(),
        "job": ctx.job.job,
        "held_back": _held_back(ctx, spec, version, what),
    }
    record = ctx.registry.publish_model(spec.model_id, version.model_copy(update={**made, **changes}))
    if (live := record.live).job == ctx.job.job:
        stay = "ramps" not in changes
        ctx.registry.change_model(
            spec.model_id, lambda r: carried(r, version.version, live.version, ramps_stay=stay)
        )
    return record


def _held_back(ctx: JobContext, spec: FineTuneSpec, version: ModelVersion, what: str) -> str | None:
    """Return the reason for which the new version is not to answer; None if it is."""
    current = ctx.registry.model(spec.model_id).current
    if current == version.version:
        return None
    return f"it is version {version.version} with {what}, and version {current} answers since the job began"
