"""The call that reads the audit log, a part of the route table (`hmi.api.routes.table`)."""

from __future__ import annotations

from hmi.api.handlers import audit
from hmi.api.http.route import Route
from hmi.api.schemas.audit import AuditPage, AuditQuery

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
