"""The call that reads the audit log."""

from __future__ import annotations

import asyncio

from hmi.api.http.call import Reply, RouteCall
from hmi.api.in_thread import OFF_LOOP_ROWS
from hmi.api.schemas.audit import AuditLine, AuditPage, AuditQuery
from hmi.errors import InvalidInput
from hmi.record import time_text
from hmi.stores.audit.reading import Line, read_page

HIDDEN = ("key", "address", "forwarded")
"""Fields that a tenant does not see in lines about it that others have caused."""


async def list_audit(call: RouteCall) -> Reply:
    """List lines of the audit log, oldest first: for a tenant's key those about the tenant."""
    query: AuditQuery = call.query
    own, tenant = call.caller.tenant, call.caller.only(query.tenant)
    since = _since(query)

    def wanted(line: Line) -> bool:
        return tenant is None or line.get("tenant") == tenant

    page = await asyncio.to_thread(
        read_page, call.services.access.audit.log.folder, query.after, since, wanted, query.limit
    )
    lines = [AuditLine.model_validate(_visible_line(line, own)) for line in page.lines]
    return Reply(
        AuditPage(lines=lines, position=page.position, more=page.more), large=len(lines) > OFF_LOOP_ROWS
    )


def _since(query: AuditQuery) -> str | None:
    try:
        return None if query.since is None else time_text(query.since)
    except OverflowError as error:
        raise InvalidInput("since is outside the years 1 to 9999", field="since") from error


def _visible_line(line: Line, own: str | None) -> Line:
    """Return the line as its reader may see it. own: the key ids of the tenant that reads; None for an
    administrator.
    """
    if own is None or line.get("who") == own:
        return line
    return {name: value for name, value in line.items() if name not in HIDDEN}
