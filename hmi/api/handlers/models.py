"""The calls about tenants' models: create, list, show, update, import, export, roll back, delete."""

from __future__ import annotations

import asyncio
import base64
from contextlib import suppress
from typing import Any

from hmi.api import quotas
from hmi.api.exits import exits_view
from hmi.api.improving import improving_view
from hmi.api.loop import OFF_LOOP_ROWS
from hmi.api.route import Call, Reply
from hmi.api.schemas import JobAccepted, NoBody
from hmi.api.schemas_exits import ExitsView
from hmi.api.schemas_manage import (
    CreateModel,
    ImportModule,
    ModelList,
    ModelQuery,
    ModelView,
    ModuleExport,
    RollbackModel,
    TrainRamps,
    UpdateModel,
)
from hmi.api.views import model_view
from hmi.core import DomainId, JobRecord, ModelId, ModelRecord
from hmi.errors import NotFound
from hmi.stores.job_table import LOOKED_AT


async def create_model(call: Call) -> Reply:
    body: CreateModel = call.body
    model = ModelId.parse(body.model)
    call.caller.must_reach(model.tenant, f"tenant {model.tenant!r}")
    job = await asyncio.to_thread(
        call.services.manager.create_model,
        body.model,
        domain=str(DomainId.parse(body.domain)),
        task=body.task,
        **_given(call, body),
    )
    return accepted(job)


def _given(call: Call, body: CreateModel | UpdateModel) -> dict[str, Any]:
    """The arguments that creating and updating a model have in common."""
    return {
        **{part: call.files.get(part) for part in ("data", "dev", "unlabelled")},
        "options": body.options.model_dump(mode="json", exclude_unset=True),
        "job_limit": job_limit(call),
    }


async def list_models(call: Call) -> Reply:
    query: ModelQuery = call.query
    found = await asyncio.to_thread(_page, call, query, call.caller.only(query.tenant))
    return Reply(found, large=len(found.models) > OFF_LOOP_ROWS)


async def show_model(call: Call) -> Reply:
    return Reply(await asyncio.to_thread(_view, call))


async def update_model(call: Call) -> Reply:
    body: UpdateModel = call.body
    job = await asyncio.to_thread(
        call.services.manager.update_model, str(call.model()), publish=body.publish, **_given(call, body)
    )
    return accepted(job)


async def train_ramps(call: Call) -> Reply:
    body: TrainRamps = call.body
    job = await asyncio.to_thread(
        call.services.manager.train_ramps,
        str(call.model()),
        data=call.files.get("data"),
        unlabelled=call.files.get("unlabelled"),
        skip_bad_rows=body.skip_bad_rows,
        reading=body.options,
        job_limit=job_limit(call),
    )
    return accepted(job)


async def import_module(call: Call) -> Reply:
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


async def export_module(call: Call) -> Reply:
    return Reply(await asyncio.to_thread(_exported, call), large=True)


async def rollback_model(call: Call) -> Reply:
    body: RollbackModel = call.body
    record = await asyncio.to_thread(call.services.manager.rollback_model, str(call.model()), body.version)
    return Reply(shown(call, record))


async def delete_model(call: Call) -> Reply:
    await asyncio.to_thread(call.services.manager.delete_model, str(call.model()))
    return Reply(NoBody())


def accepted(job: JobRecord) -> Reply:
    """The answer of a call that started a job."""
    return Reply(JobAccepted(job=job.job), location=f"/manage/jobs/{job.job}")


def job_limit(call: Call) -> int | None:
    """The most jobs that the caller's tenant may have; None, without limit, for an administrator."""
    return None if call.caller.tenant is None else quotas.TENANT_JOBS


def shown(call: Call, record: ModelRecord) -> ModelView:
    """A model with the state of its early exits, and of its background job."""
    exits = None if record.objective.agreement is None else exits_of(call, record)
    return model_view(record, exits, improving_view(record, call.services.manager.registry))


def exits_of(call: Call, record: ModelRecord) -> ExitsView:
    """The state of a model's early exits."""
    held = False
    with suppress(NotFound):  # it has no cascade
        held = call.services.manager.cascade(f"{record.tenant}.{record.name}").stale is None
    return exits_view(record, call.services.engine.exits, held=held)


def _view(call: Call) -> ModelView:
    return shown(call, call.services.manager.model(str(call.model())))


def _exported(call: Call) -> ModuleExport:
    made = call.services.manager.export_module(str(call.model()))
    files = {name: base64.b64encode(data).decode() for name, data in made.files.items()}
    return ModuleExport(
        model=made.model, version=made.version, format="adapters 1.3.0", files=files, left_out=made.left_out
    )


def _page(call: Call, query: ModelQuery, tenant: str | None) -> ModelList:
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
