"""The part of a model's answer that tells of its background job `improve`."""

from __future__ import annotations

from contextlib import suppress

from hmi.api.schemas.second_version import ImprovingView, State
from hmi.core import ENDED, Improvement, JobRecord, ModelRecord
from hmi.errors import HmiError
from hmi.stores.records.registry import Registry


def improving_view(model: ModelRecord, registry: Registry) -> ImprovingView | None:
    """The view of the model's newest job `improve`; None if there was none."""
    found = model.improvement
    if found is None:
        return None
    job: JobRecord | None = None
    with suppress(HmiError):  # the record is kept for some days; the model's own stays
        job = registry.job(found.job)
    state, since, why = _state(found, job)
    return ImprovingView(
        job=found.job,
        state=state,
        since=since,
        version=found.version,
        tried=list(found.tried),
        published=found.published,
        gain=found.gain,
        cpu_s=found.cpu_s,
        why=why,
        says=_improvement_sentence(found, state, why),
    )


def _state(found: Improvement, job: JobRecord | None) -> tuple[State, str, str | None]:
    """The state, its beginning, and why the job stopped."""
    if job is None:
        return ("stopped" if found.ended is None else "finished"), found.ended or found.queued, found.why
    if job.state == "running":
        return "running", job.started or job.created, None
    if job.state not in ENDED:
        return "queued", job.created, None
    since = job.ended or job.created
    if job.state == "succeeded":
        return "finished", since, found.why
    told = (job.error or {}).get("message") or (job.result or {}).get("reason")
    return "stopped", since, found.why or told or "it was cancelled"


def _improvement_sentence(found: Improvement, state: State, why: str | None) -> str:
    if state == "queued":
        return f"job {found.job} waits to improve version {found.version}"
    if state == "running":
        return f"job {found.job} tries to improve version {found.version}"
    if found.published is not None:
        return f"version {found.published} was published: {why}"
    return f"version {found.version} was not improved: {why}"
