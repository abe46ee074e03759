"""OpenAI's calls about fine-tuning jobs. The jobs are those of `/manage/jobs`."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hmi.api.handlers.jobs import own_job
from hmi.api.handlers.models import job_limit
from hmi.api.handlers.protocols.openai_files import own_file
from hmi.api.http.call import Reply, RouteCall
from hmi.api.protocols.openai.jobs import (
    CheckpointList,
    CreateFineTuning,
    EventQuery,
    FineTuningEventList,
    FineTuningJob,
    FineTuningJobList,
    FineTuningQuery,
    events_of,
    is_fine_tuning,
    job_of,
)
from hmi.api.protocols.openai.names import model_named
from hmi.core import DomainId, JobRecord, ModelId, Task
from hmi.errors import HmiError, InvalidData, InvalidInput
from hmi.jobs.checks import task_of_file
from hmi.stores.records.job_table import no_job

MAX_PAGES = 8
"""Pages of jobs that are read for one page of those that train models."""
_FIELDS = {"data": "training_file", "dev": "validation_file", "domain": "model"}
"""OpenAI's names of fields that the manager's errors name."""


async def create_job(call: RouteCall) -> Reply:
    """Start a job that makes a new model, or a new version of one."""

    def create() -> FineTuningJob:
        with _renamed_fields():
            return _fine_tuning_view(call, _submitted(call, call.body))

    return Reply(await asyncio.to_thread(create))


async def list_jobs(call: RouteCall) -> Reply:
    """List the jobs that train models, newest first."""
    query: FineTuningQuery = call.query

    def page() -> FineTuningJobList:
        manager = call.services.manager
        manager.runner.recover()  # so that every job in the state `running` has a process
        found: list[JobRecord] = []
        after = query.after
        for _ in range(MAX_PAGES):
            some, after = manager.registry.page_of_jobs(
                call.caller.tenant, None, "fine_tune", after, query.limit + 1
            )
            found += filter(is_fine_tuning, some)
            if after is None or len(found) > query.limit:
                break
        data = [_fine_tuning_view(call, job) for job in found[: query.limit]]
        return FineTuningJobList(data=data, has_more=after is not None or len(found) > query.limit)

    return Reply(await asyncio.to_thread(page))


async def show_job(call: RouteCall) -> Reply:
    return Reply(await asyncio.to_thread(lambda: _fine_tuning_view(call, _own_fine_tuning(call))))


async def cancel_job(call: RouteCall) -> Reply:
    """Ask a job to stop. Raises Conflict if it has ended."""

    def cancel() -> FineTuningJob:
        return _fine_tuning_view(call, call.services.manager.cancel_job(_own_fine_tuning(call).job))

    return Reply(await asyncio.to_thread(cancel))


async def job_events(call: RouteCall) -> Reply:
    """List what happened to a job, newest first."""
    query: EventQuery = call.query

    def events() -> FineTuningEventList:
        job = _own_fine_tuning(call)
        found = events_of(job, call.services.manager.job_progress(job.job))
        if query.after is not None:
            last = next((i for i, event in enumerate(found) if event.id == query.after), len(found))
            found = found[last + 1 :]
        return FineTuningEventList(data=found[: query.limit], has_more=len(found) > query.limit)

    return Reply(await asyncio.to_thread(events))


async def job_checkpoints(call: RouteCall) -> Reply:
    await asyncio.to_thread(_own_fine_tuning, call)
    return Reply(CheckpointList(data=[]))


def _submitted(call: RouteCall, body: CreateFineTuning) -> JobRecord:
    """Queue the job. Raises NotFound, InvalidInput, InvalidData, Conflict, QuotaExceeded, StorageFull."""
    files = {"data": _content(call, body.training_file, "training_file")}
    if body.validation_file is not None:
        files["dev"] = _content(call, body.validation_file, "validation_file")
    asked = body.model_dump(
        include={"model", "training_file", "validation_file", "suffix", "metadata"}, exclude_none=True
    )
    given: dict[str, Any] = {**files, "options": _options(body), "job_limit": job_limit(call), "asked": asked}
    manager = call.services.manager
    base = None if "/" in body.model or "." not in body.model else model_named(body.model)
    if base is None:
        domain = str(DomainId.parse(body.model, "model"))
        task = body.task or _task_for(call, domain, files["data"])
        return manager.create_model(_new_name(call, body.suffix, None), domain=domain, task=task, **given)
    assert call.where.models is not None
    live = call.where.models.live(base)
    if body.task not in (None, live.task):
        raise InvalidInput(f"task: {base} is of the task {live.task}: leave task out", field="task")
    if body.suffix is None:
        return manager.update_model(str(base), **given)
    given["options"]["start"] = str(base)
    return manager.create_model(
        _new_name(call, body.suffix, base.tenant), domain=live.domain, task=live.task, **given
    )


def _options(body: CreateFineTuning) -> dict[str, Any]:
    """The options of the training that the request sets."""
    chosen = body.chosen
    if chosen.learning_rate_multiplier not in ("auto", 1):
        raise InvalidInput(
            "learning_rate_multiplier: HMI chooses the learning rate by task and rows: leave it out, or set "
            "the rate itself as options.lr",
            field="learning_rate_multiplier",
        )
    named = {"epochs": chosen.n_epochs, "batch": chosen.batch_size, "seed": body.seed}
    options = body.options.model_dump(mode="json", exclude_unset=True)
    return {**options, **{name: value for name, value in named.items() if value not in (None, "auto")}}


def _new_name(call: RouteCall, suffix: str | None, tenant: str | None) -> str:
    """The name of the model to be made. Raises InvalidInput, and NotFound for a tenant out of reach."""
    name = suffix or f"ft-{secrets.token_hex(4)}"
    owner = call.caller.tenant or tenant
    if "." not in name:
        if owner is None:
            raise InvalidInput(
                "suffix: an administrator's key belongs to no tenant: give tenant.model", field="suffix"
            )
        name = f"{owner}.{name}"
    model = ModelId.parse(name, "suffix")
    call.caller.must_reach(model.tenant, f"tenant {model.tenant!r}", field="suffix")
    return str(model)


def _content(call: RouteCall, file: str, field: str) -> Path:
    return call.services.manager.files.checked(own_file(call, file, field))


def _task_for(call: RouteCall, domain: str, rows: Path) -> Task:
    """The task of a new model on a domain: a language model's write; on an encoder, the rows tell it.

    Raises NotFound, InvalidData.
    """
    manager = call.services.manager
    if manager.registry.root(manager.domain(domain).root).generates:
        return "generation"
    found = task_of_file(rows, "training_file")
    if found is None:
        raise InvalidData(
            'training_file: its columns fit no task: give rows such as {"text": …, "label": …} or chats '
            '({"messages": […]}), or name the task (extra_body={"task": …})',
            field="training_file",
        )
    return found


def _own_fine_tuning(call: RouteCall) -> JobRecord:
    """The job in the path. Raises NotFound for one that is out of reach or trains no model."""
    job = own_job(call)
    if not is_fine_tuning(job):
        raise no_job(job.job)
    return job


def _fine_tuning_view(call: RouteCall, job: JobRecord) -> FineTuningJob:
    return job_of(job, call.services.manager.job_progress(job.job))


@contextmanager
def _renamed_fields() -> Iterator[None]:
    """Context manager: errors in the block name the fields as OpenAI does."""
    try:
        yield
    except HmiError as error:
        field = error.details.get("field")
        error.details["field"] = _FIELDS.get(str(field), field)
        raise
