"""Which two models can be the levels of a cascade, and whether its profile still holds. Loads no torch."""

from __future__ import annotations

import re
from collections.abc import Callable

from hmi.core import CASCADE_TASKS, Cascade, ModelId, ModelRecord, ModelVersion
from hmi.errors import Conflict, InvalidInput, NotFound

CURE = "profile it again: POST …/cascade, or hmi profile cascade"
"""The cure for a stale cascade, in messages."""


def small_level(
    model_of: Callable[[ModelId], ModelRecord], large: ModelRecord, small: str | None
) -> ModelRecord | None:
    """The model that is to answer first; None: a ramp of the large level.

    small: its name, or `TENANT.LARGE@VERSION`: an earlier version of the large level. Such a version becomes
    a model of its own, `LARGE-vVERSION`, when the profile is attached. Raises InvalidInput, NotFound, and
    Conflict if a model of this name answers otherwise.
    """
    if small is None:
        return None
    named, at, version = small.partition("@")
    wanted = ModelId.parse(named, "small")
    if wanted.tenant != large.tenant:  # before the look-up of a foreign model
        raise InvalidInput(
            f"small {wanted} belongs to another tenant: name a model of {large.tenant}", field="small"
        )
    if not at:
        return model_of(wanted)
    if wanted.name != large.name or not re.fullmatch("[0-9]{1,9}", version):
        raise InvalidInput(
            f"small {small} is no earlier version of the model itself: write {large.tenant}.{large.name}@1, "
            "or another model's name without a version",
            field="small",
        )
    made = _of_version(large, int(version))
    try:
        there = model_of(ModelId(made.tenant, made.name))
    except NotFound:
        return made
    if there.live.artefact != made.live.artefact:
        raise Conflict(
            f"small: a model {made.tenant}.{made.name} exists and is not version {version} of "
            f"{large.tenant}.{large.name}: delete it, or name the model that is to answer first",
            field="small",
        )
    return there


def _of_version(large: ModelRecord, version: int) -> ModelRecord:
    """A model that answers as an earlier version of this one does."""
    found = next((v for v in large.versions if v.version == version), None)
    others = ", ".join(str(v.version) for v in large.versions if v.version != large.current)
    if found is None or version == large.current:
        what = "is the one that answers" if found else "does not exist"
        raise InvalidInput(
            f"small: version {version} of {large.tenant}.{large.name} {what}: name one of {others or 'none'}",
            field="small",
        )
    name = ModelId.parse(f"{large.tenant}.{large.name}-v{version}", "small").name
    answers = found.model_copy(update={"held_back": None})
    return ModelRecord(tenant=large.tenant, name=name, current=version, versions=(answers,), depth="fast")


def check_levels(large: ModelRecord, small: ModelRecord | None) -> None:
    """Raise InvalidInput if these models cannot be a cascade's levels. small: None is a ramp of the large."""
    last, name = large.live, f"{large.tenant}.{large.name}"
    if last.task not in CASCADE_TASKS:
        raise InvalidInput(
            f"a cascade needs one label for each text, and {name} is a {last.task} model: use early exits "
            "instead",
            field="model",
        )
    if small is None:
        if not last.ramps:
            raise InvalidInput(
                f"{name} has no ramps that could answer first: train them ('hmi model ramps'), or name "
                "another model in small",
                field="small",
            )
        return
    first = small.live
    if small.tenant != large.tenant:
        raise InvalidInput(f"small belongs to another tenant: name a model of {large.tenant}", field="small")
    if small.name == large.name:
        raise InvalidInput(
            "small is the model itself: name another model of the tenant, or leave it out, so that a ramp "
            "answers first",
            field="small",
        )
    if (first.task, {*first.labels}) != (last.task, {*last.labels}):
        raise InvalidInput(
            f"small is a {first.task} model with {len(first.labels)} labels, but the large level is a "
            f"{last.task} model with {len(last.labels)}: both need the same task and the same labels",
            field="small",
        )


def why_stale(cascade: Cascade, live: ModelVersion, small: ModelVersion | None) -> str | None:
    """Why a profile does not hold for the versions that answer; None if it does.

    small: the version of the small level that answers; None if that model is gone, or is a ramp.
    """
    if cascade.version != live.version:
        return f"it is of version {cascade.version} of the model, but version {live.version} answers"
    if cascade.small is None:
        return None
    if small is None:
        return f"its small level {cascade.small} does not exist any more"
    if (small.version, small.artefact) != (cascade.small_version, cascade.small_artefact):
        return (
            f"it is of version {cascade.small_version} of its small level {cascade.small}, but version "
            f"{small.version} answers"
        )
    return None


def carried(record: ModelRecord, former: int, new: int, *, ramps_stay: bool = False) -> ModelRecord:
    """The record after its model got new ramps or prompts, and nothing else. new: the version that is the
    former one with them.

    A profile of two models still holds, since both levels answer as before. One of a ramp holds only if the
    ramps are the former ones (ramps_stay).
    """
    cascade = record.cascade
    if cascade is None or cascade.version != former or (cascade.small is None and not ramps_stay):
        return record
    return record.model_copy(update={"cascade": cascade.model_copy(update={"version": new})})
