"""The calls about tenants' models: create, list, show, change, update, import, export, roll back, delete."""

from __future__ import annotations

import asyncio
import base64
from contextlib import suppress
from typing import Any

from hmi.api.access import quotas
from hmi.api.http.call import Reply, RouteCall
from hmi.api.in_thread import OFF_LOOP_ROWS
from hmi.api.schemas.exits import ExitsView
from hmi.api.schemas.models import (
    ChangeModel,
    CreateModel,
    ImportModule,
    ModelList,
    ModelQuery,
    ModelView,
    ModuleExport,
    RollbackModel,
    UpdateModel,
)
from hmi.api.schemas.shared import JobAccepted, NoBody
from hmi.api.views.exits import exits_view
from hmi.api.views.records import model_view
from hmi.api.views.second_version import improving_view
from hmi.core import DomainId, JobRecord, ModelId, ModelRecord
from hmi.errors import NotFound
from hmi.stores.records.job_table import LOOKED_AT


async def create_model(call: RouteCall) -> Reply:
    body: CreateModel = call.body
    model = ModelId.parse(body.model)
    call.caller.must_reach(model.tenant, f"tenant {model.tenant!r}")
    job = await asyncio.to_thread(
        call.services.manager.create_model,
        body.model,
        domain=str(DomainId.parse(body.domain)),
        task=body.task,
        **_training_arguments(call, body),
    )
    return accepted(job)


def _training_arguments(call: RouteCall, body: CreateModel | UpdateModel) -> dict[str, Any]:
    """The arguments that creating and updating a model have in common."""
    return {
        **{part: call.files.get(part) for part in ("data", "dev", "unlabelled")},
        "options": body.options.model_dump(mode="json", exclude_unset=True),
        "job_limit": job_limit(call),
    }


async def list_models(call: RouteCall) -> Reply:
    query: ModelQuery = call.query
    found = await asyncio.to_thread(_page, call, query, call.caller.only(query.tenant))
    return Reply(found, large=len(found.models) > OFF_LOOP_ROWS)


async def show_model(call: RouteCall) -> Reply:
    return Reply(await asyncio.to_thread(_view, call))


async def change_model(call: RouteCall) -> Reply:
    """Change a model's objective, the share of texts that it is to know, and its depth."""
    body: ChangeModel = call.body
    manager, model = call.services.manager, str(call.model())
    others = body.model_dump(include={"known_share", "depth"} & body.model_fields_set)
    record = await asyncio.to_thread(manager.set_objective, model, body.changed, others)
    return Reply(model_view_of(call, record))


async def update_model(call: RouteCall) -> Reply:
    body: UpdateModel = call.body
    job = await asyncio.to_thread(
        call.services.manager.update_model,
        str(call.model()),
        publish=body.publish,
        **_training_arguments(call, body),
    )
    return accepted(job)


async def import_module(call: RouteCall) -> Reply:
    body: ImportModule = call.body
    model = ModelId.parse(body.model)
    call.caller.must_reach(model.tenant, f"tenant {model.tenant!r}")
    job = await asyncio.to_thread(
        call.services.manager.import_module,
        body.model,
        domain=str(DomainId.parse(body.domain)),
        task=body.task,
        files=call.files,
        options=body.options.model_dump(mode="json", exclude_unset=True),
        job_limit=job_limit(call),
    )
    return accepted(job)


async def export_module(call: RouteCall) -> Reply:
    return Reply(await asyncio.to_thread(_exported, call), large=True)


async def rollback_model(call: RouteCall) -> Reply:
    body: RollbackModel = call.body
    record = await asyncio.to_thread(call.services.manager.rollback_model, str(call.model()), body.version)
    return Reply(model_view_of(call, record))


async def delete_model(call: RouteCall) -> Reply:
    await asyncio.to_thread(call.services.manager.delete_model, str(call.model()))
    return Reply(NoBody())


def accepted(job: JobRecord) -> Reply:
    """The answer of a call that started a job."""
    return Reply(JobAccepted(job=job.job), location=f"/manage/jobs/{job.job}")


def job_limit(call: RouteCall) -> int | None:
    """The most jobs that the caller's tenant may have; None, without limit, for an administrator."""
    return None if call.caller.tenant is None else quotas.TENANT_JOBS


def model_view_of(call: RouteCall, record: ModelRecord) -> ModelView:
    """A model with the state of its early exits, and of its background job."""
    exits = None if record.objective.agreement is None else exits_of(call, record)
    return model_view(record, exits, improving_view(record, call.services.manager.registry))


def exits_of(call: RouteCall, record: ModelRecord) -> ExitsView:
    """The state of a model's early exits."""
    held = False
    with suppress(NotFound):  # it has no cascade
        held = call.services.manager.cascade(f"{record.tenant}.{record.name}").stale is None
    return exits_view(record, call.services.engine.exits, held=held)


def _view(call: RouteCall) -> ModelView:
    return model_view_of(call, call.services.manager.model(str(call.model())))


def _exported(call: RouteCall) -> ModuleExport:
    made = call.services.manager.export_module(str(call.model()))
    files = {name: base64.b64encode(data).decode() for name, data in made.files.items()}
    return ModuleExport(
        model=made.model, version=made.version, format=made.format, files=files, left_out=made.left_out
    )


def _page(call: RouteCall, query: ModelQuery, tenant: str | None) -> ModelList:
    """A page of models. At most LOOKED_AT records are read for it, so a filtered page may be short."""
    domain = None if query.domain is None else str(DomainId.parse(query.domain))
    page: list[ModelView] = []
    after, left = query.after, LOOKED_AT
    while left:
        some = call.services.manager.models(tenant=tenant, after=after, limit=min(left, query.limit + 1))
        for record in some:
            live = record.live
            if domain in (None, live.domain) and query.task in (None, live.task):
                if len(page) == query.limit:
                    return ModelList(models=page, next=after)
                page.append(model_view(record))
            after = f"{record.tenant}.{record.name}"
        if len(some) < min(left, query.limit + 1):
            return ModelList(models=page, next=None)
        left -= len(some)
    return ModelList(models=page, next=after)
