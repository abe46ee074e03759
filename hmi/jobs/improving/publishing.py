"""Decides whether a better version answers at once."""

from __future__ import annotations

from hmi.jobs.runtime.context import JobContext
from hmi.jobs.specs import ImproveSpec


def held_back(ctx: JobContext, spec: ImproveSpec) -> str | None:
    """Return why a better version is not to answer until its tenant says so, or None if it may.

    A cascade holds for the versions that it was profiled with. The tenant would find it switched off without
    having done anything.
    """
    for model in ctx.registry.models(spec.model_id.tenant, tolerant=True):
        name, cascade = f"{model.tenant}.{model.name}", model.cascade
        if cascade is not None and spec.model in (name, cascade.small):
            return (
                f"the cascade of {name} was profiled with version {spec.version}: publish this version, and "
                "profile the cascade again"
            )
    return None
