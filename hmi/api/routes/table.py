"""The route table: `ROUTES` lists every call of the server; calls about models and of protocols are made in
files beside it. The OpenAPI document is generated from it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from hmi.api.handlers import (
    audit,
    backups,
    check,
    domains,
    generate,
    health,
    jobs,
    keys,
    overview,
    page,
    roots,
    servers,
    tenants,
)
from hmi.api.handlers.protocols import hub, infer, ollama, tei, write
from hmi.api.http.call import RouteCall
from hmi.api.http.route import Instead, Route
from hmi.api.protocols.base import UNNAMED, RawBody
from hmi.api.protocols.huggingface import from_hub_client
from hmi.api.protocols.native import NATIVE
from hmi.api.protocols.writing import WritingEndpoint
from hmi.api.routes.models import CASCADES, MODELS
from hmi.api.routes.oip import OIP_ROUTES
from hmi.api.routes.openai import OPENAI_ROUTES
from hmi.api.routes.openapi import document
from hmi.api.rpc import answering
from hmi.api.schemas.audit import AuditPage, AuditQuery
from hmi.api.schemas.backups import BackupList, BackupQuery, CreateBackup
from hmi.api.schemas.check import CheckFile, CheckView
from hmi.api.schemas.domains import (
    ChangeDomain,
    CreateDomain,
    DomainList,
    DomainView,
    EraseText,
    GrowDomain,
    RollbackDomain,
    UpdateDomain,
)
from hmi.api.schemas.generate import GenerateAnswer, GenerateBody
from hmi.api.schemas.overview import OverviewQuery, OverviewView, StatsView
from hmi.api.schemas.roots import ChangeRoot, ImportRoot, RootList, ShardRoot
from hmi.api.schemas.servers import Loaded, LoadModels, ModelNames, ServerList, ServerView
from hmi.api.schemas.shared import Health, JobAccepted, JobList, JobQuery, JobView, NoBody
from hmi.api.schemas.tenants import (
    ChangeTenant,
    CreateKey,
    CreateTenant,
    KeyCreated,
    KeyList,
    KeyRotated,
    RotateKey,
    TenantCreated,
    TenantDeleted,
    TenantDetails,
    TenantList,
    TenantView,
    UsageView,
)

if TYPE_CHECKING:
    from aiohttp import web
else:
    from hmi.api.lazy_import import web


BACKUPS = (
    Route(
        "GET",
        "/manage/backups",
        backups.list_backups,
        "List the backups at the configured place.",
        BackupList,
        "admin",
        query=BackupQuery,
        kinds=("conflict",),
    ),
    Route(
        "POST",
        "/manage/backups",
        backups.create_backup,
        "Back up the data folder to the configured place.",
        JobAccepted,
        "admin",
        202,
        body=CreateBackup,
        creates=True,
        kinds=("conflict",),
    ),
)


AUDIT = (
    Route(
        "GET",
        "/manage/audit",
        audit.list_audit,
        "List lines of the audit log, oldest first.",
        AuditPage,
        "manage",
        query=AuditQuery,
        kinds=("not_found",),
    ),
)


SERVERS = (
    Route(
        "GET",
        "/manage/servers",
        servers.list_servers,
        "List the servers that share the bucket.",
        ServerList,
        "manage",
        here=True,
    ),
    Route(
        "GET",
        "/manage/server",
        servers.show_server,
        "How this server stands.",
        ServerView,
        "manage",
        here=True,
        while_draining=True,
    ),
    Route(
        "POST",
        "/manage/server/lead",
        servers.lead,
        "Make this server the primary.",
        ServerView,
        "admin",
        here=True,
        kinds=("conflict",),
    ),
    Route(
        "GET",
        "/server/models",
        servers.recent_models,
        "For other servers: the models that answered lately, the latest first.",
        ModelNames,
        kinds=("conflict", "forbidden"),
    ),
    Route(
        "POST",
        "/server/models",
        servers.load_models,
        "For other servers: load models that this one answers from now on.",
        Loaded,
        body=LoadModels,
        kinds=("conflict", "forbidden"),
    ),
    Route(
        "POST",
        answering.PATH,
        answering.answer,
        "For other servers: answer a message of gRPC for its caller, whose key comes along.",
        None,
        "infer",
        body=bytes,
        raw=RawBody((UNNAMED,), answering.read),
        media=UNNAMED,
        headers=answering.HEADERS,
        inputs_field="inputs",
        cancellable=True,
        kinds=(*infer.ERRORS, "conflict"),
    ),
)

CORPUS = {"corpus": True}
TENANT, KEYS = "/manage/tenants/{tenant}", "/manage/tenants/{tenant}/keys"
DOMAIN, JOB = "/manage/domains/{domain}", "/manage/jobs/{job}"


@cache
def contract() -> tuple[bytes, str]:
    """The OpenAPI document as it is sent, and its ETag.

    It is cached: rendering takes tens of milliseconds, and anybody may ask.
    """
    body = json.dumps(document(ROUTES), ensure_ascii=False, separators=(",", ":")).encode()
    return body, hashlib.sha256(body).hexdigest()[:32]


async def openapi(call: RouteCall) -> web.StreamResponse:
    """Answer with the OpenAPI document, or with 304 if the client has the current one."""
    assert call.request is not None
    body, tag = contract()
    known = any(given.value in (tag, "*") for given in call.request.if_none_match or ())
    answer = web.Response(status=304) if known else web.Response(body=body, content_type="application/json")
    answer.etag = tag
    return answer


ROOTS = (
    Route("GET", "/manage/roots", roots.list_roots, "List the roots.", RootList, "manage"),
    Route(
        "POST",
        "/manage/roots",
        roots.import_root,
        "Import a root.",
        JobAccepted,
        "admin",
        202,
        body=ImportRoot,
        files=dict.fromkeys(roots.TEXTS, False),
        creates=True,
        kinds=("conflict", "unsupported_model"),
    ),
    Route(
        "PATCH",
        "/manage/roots/{root}",
        roots.change_root,
        "Change how a root is kept in memory.",
        NoBody,
        "admin",
        body=ChangeRoot,
        kinds=("conflict",),
    ),
    Route(
        "POST",
        "/manage/roots/{root}/shards",
        roots.shard_root,
        "Cut a root's upper layers into shards, and measure them.",
        JobAccepted,
        "admin",
        202,
        body=ShardRoot,
        files={"text": False},
        kinds=("conflict",),
    ),
    Route(
        "DELETE",
        "/manage/roots/{root}",
        roots.delete_root,
        "Delete a root that nothing depends on.",
        NoBody,
        "admin",
        kinds=("conflict",),
    ),
)

DOMAINS = (
    Route("GET", "/manage/domains", domains.list_domains, "List the version trees.", DomainList, "manage"),
    Route(
        "POST",
        "/manage/domains",
        domains.create_domain,
        "Create a branch from a parent and a corpus.",
        JobAccepted,
        "admin",
        202,
        body=CreateDomain,
        files=CORPUS,
        creates=True,
        kinds=("conflict", "invalid_data"),
    ),
    Route("GET", DOMAIN, domains.show_domain, "A domain and its versions.", DomainView, "manage"),
    Route(
        "POST",
        f"{DOMAIN}/update",
        domains.update_domain,
        "Build a new version from more text.",
        JobAccepted,
        "admin",
        202,
        body=UpdateDomain,
        files=CORPUS,
        creates=True,
        kinds=("conflict", "invalid_data"),
    ),
    Route(
        "PATCH",
        DOMAIN,
        domains.change_domain,
        "Switch the recording of misses on or off.",
        DomainView,
        "admin",
        body=ChangeDomain,
        kinds=("storage_full",),
    ),
    Route(
        "POST",
        f"{DOMAIN}/grow",
        domains.grow_domain,
        "Build a new version with what users' texts missed most.",
        JobAccepted,
        "admin",
        202,
        body=GrowDomain,
        creates=True,
        kinds=("conflict", "storage_full"),
    ),
    Route(
        "POST",
        f"{DOMAIN}/erase",
        domains.erase_text,
        "Erase a text's n-grams and passages from all versions.",
        JobAccepted,
        "admin",
        202,
        body=EraseText,
        files={"text": False, "keep": False},
        creates=True,
        kinds=("conflict", "invalid_data", "storage_full"),
    ),
    Route(
        "POST",
        f"{DOMAIN}/rollback",
        domains.rollback_domain,
        "Point the domain to an older version.",
        DomainView,
        "admin",
        body=RollbackDomain,
        kinds=("conflict",),
    ),
    Route(
        "DELETE",
        DOMAIN,
        domains.delete_domain,
        "Delete a domain that nothing depends on.",
        NoBody,
        "admin",
        kinds=("conflict",),
    ),
)

TENANTS = (
    Route("GET", "/manage/tenants", tenants.list_tenants, "List the tenants.", TenantList, "manage"),
    Route(
        "POST",
        "/manage/tenants",
        tenants.create_tenant,
        "Create a tenant and its first key.",
        TenantCreated,
        "admin",
        201,
        body=CreateTenant,
        creates=True,
        again=tenants.create_tenant_again,
        kinds=("conflict",),
    ),
    Route(
        "GET",
        TENANT,
        tenants.show_tenant,
        "A tenant, and what is left of its limits.",
        TenantDetails,
        "manage",
    ),
    Route(
        "PATCH",
        TENANT,
        tenants.change_tenant,
        "Change a tenant's weight or limits.",
        TenantView,
        "admin",
        body=ChangeTenant,
    ),
    Route(
        "DELETE", TENANT, tenants.delete_tenant, "Delete a tenant and all it owns.", TenantDeleted, "admin"
    ),
    Route("GET", KEYS, keys.list_keys, "List a tenant's keys.", KeyList, "manage"),
    Route(
        "POST",
        KEYS,
        keys.create_key,
        "Issue a key.",
        KeyCreated,
        "manage",
        201,
        body=CreateKey,
        creates=True,
        again=keys.create_key_again,
    ),
    Route(
        "POST",
        f"{KEYS}/{{key}}/rotate",
        keys.rotate_key,
        "Issue a key that follows another one, which ends after an overlap.",
        KeyRotated,
        "manage",
        201,
        body=RotateKey,
        creates=True,
        again=keys.rotate_key_again,
        kinds=("conflict",),
    ),
    Route("DELETE", f"{KEYS}/{{key}}", keys.revoke_key, "Revoke a key.", NoBody, "manage"),
    Route("GET", f"{TENANT}/usage", tenants.usage, "What a tenant used and stores.", UsageView, "manage"),
)

JOBS = (
    Route(
        "GET",
        "/manage/jobs",
        jobs.list_jobs,
        "List jobs, newest first.",
        JobList,
        "manage",
        query=JobQuery,
        kinds=("not_found",),
    ),
    Route("GET", JOB, jobs.show_job, "A job and its progress.", JobView, "manage"),
    Route(
        "GET",
        f"{JOB}/events",
        jobs.job_events,
        "Follow a job (server-sent events).",
        None,
        "manage",
        media="text/event-stream",
        cancellable=True,
        kinds=("quota_exceeded",),
    ),
    Route("DELETE", JOB, jobs.cancel_job, "Cancel a job.", JobView, "manage", kinds=("conflict",)),
    Route("GET", "/manage/stats", overview.stats, "What is kept, by tier.", StatsView, "admin"),
    Route(
        "GET",
        "/manage/overview",
        overview.show,
        "The server at a glance, with the last minutes or hours.",
        OverviewView,
        "manage",
        query=OverviewQuery,
    ),
    Route(
        "POST",
        "/manage/check",
        check.check,
        "Check a file of rows or text as a job would, without starting one.",
        CheckView,
        "manage",
        body=CheckFile,
        files={"data": True},
        reads=True,
        kinds=("invalid_data",),
    ),
)

PAGE = (
    Route("GET", "/", page.index, "The page.", media="text/html", while_draining=True, etag=True),
    Route(
        "GET",
        "/page/{file}",
        page.file,
        "A file of the page.",
        media="*/*",
        while_draining=True,
        etag=True,
        kinds=("not_found",),
    ),
    Route(
        "GET",
        "/dashboard",
        page.dashboard,
        "Redirects to the page.",
        media="text/plain",
        status=308,
        while_draining=True,
    ),
)

OPERATION = (
    Route("GET", "/healthz", health.healthz, "Whether the process is alive.", Health, while_draining=True),
    Route(
        "GET",
        "/readyz",
        health.readyz,
        "Whether the server takes requests.",
        Health,
        while_draining=True,
        kinds=("unavailable",),
    ),
    Route("GET", "/metrics", health.metrics, "Prometheus metrics.", media="text/plain", while_draining=True),
    Route("GET", "/openapi.json", openapi, "This document.", while_draining=True, etag=True),
)

GENERATE = WritingEndpoint(
    "/generate/{model}",
    "Write a text with one model, in one answer or as server-sent events.",
    GenerateBody,
    GenerateAnswer,
    generate.Generation,
)
INFERENCE = (
    *write.routes_of(NATIVE, [GENERATE]),
    *(
        replace(route, instead=Instead(from_hub_client, hub.ASK)) if route.path == "/infer/{model}" else route
        for route in infer.routes_of(NATIVE)
    ),
    *hub.ROUTES,
)

ROUTES: tuple[Route, ...] = (
    *ROOTS,
    *DOMAINS,
    *TENANTS,
    *MODELS,
    *CASCADES,
    *JOBS,
    *BACKUPS,
    *AUDIT,
    *SERVERS,
    *INFERENCE,
    *OPENAI_ROUTES,
    *tei.ROUTES,
    *ollama.ROUTES,
    *OIP_ROUTES,
    *OPERATION,
    *PAGE,
)
INFER_PATHS = frozenset(route.path for route in ROUTES if route.asks_models)
"""The paths of the calls that ask models, of all protocols."""


def openapi_text() -> str:
    """The OpenAPI document as `docs/openapi.json` holds it."""
    return json.dumps(document(ROUTES), indent=1, ensure_ascii=False) + "\n"
