"""Writes the audit log's lines about calls: changes with their outcomes, administrators' calls, refused
callers.
"""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from hmi.api.access.audit import Audit, Fields
from hmi.api.access.auth import ExpiredKey
from hmi.api.access.caller import NOBODY, Caller
from hmi.api.http.call import Reply, RouteCall
from hmi.api.http.route import Route
from hmi.api.protocols.errors import known
from hmi.core import ID_PATTERN
from hmi.errors import Forbidden, HmiError, QuotaExceeded, StorageFull, Unauthorised
from hmi.stores.audit.log import AuditLog

if TYPE_CHECKING:
    from aiohttp import web

    from hmi.api.http.services import Access

BEGUN, CHANGE, ACCESS, REFUSED, SERVER = "begun", "change", "access", "refused", "server"
"""Events: a change begins; its outcome; an administrator's call that changes nothing; a refused caller; the
server's own start and end."""
NAMED = ("tenant", "model", "domain", "root", "name", "small")
"""Fields of bodies that name an object. Each has the pattern of a name, so that no text gets into the log."""
_NAME = re.compile(r"[a-z0-9./-]{1,200}")
_ADDRESSES = re.compile(r"[0-9A-Fa-f:.,\[\] ]{1,100}")


def identify_caller(route: Route, request: web.Request, request_id: str, access: Access) -> Caller:
    """Return the caller of a request, and count a change towards its quota. Writes a refusal to the log.

    Raises as `Auth.caller` and `Quotas.change`.
    """
    from hmi.api.http.services import CALLER  # here, since it loads a web server, which commands do not need

    if route.scope is None:
        return NOBODY
    caller: Caller | None = None
    try:
        caller = access.auth.caller(request, route.scope)
        if route.changes:
            access.quotas.change(caller.tenant)
    except (Unauthorised, Forbidden, QuotaExceeded) as error:
        about = {"request": request_id, "call": _call(route), **_place(request)}
        refuse(access.audit, error, about, caller)
        raise
    if route.scope == "infer":
        request[CALLER] = caller
    return caller


def refuse(audit: Audit, error: HmiError, about: Mapping[str, Any], caller: Caller | None = None) -> None:
    """Write that a caller was refused. about: the fields `request`, `call` and `address`."""
    fields: Fields = {"event": REFUSED, "who": "nobody", **about, "outcome": error.kind}
    if isinstance(error, ExpiredKey):
        fields |= {"key": error.key.key_id, "tenant": error.key.tenant, "reason": "expired"}
    if caller is not None:
        fields |= _actor(caller)
    audit.refused(fields, str(about.get("address", "")))


def log_access(audit: Audit, caller: Caller, about: Mapping[str, Any]) -> None:
    """Write that an administrator made a call that changes nothing. A tenant's calls are not written. about:
    what is known of `request`, `call`, `address`, `tenant` and `object`."""
    if caller.tenant is None:
        audit.access({"event": ACCESS, **_actor(caller), **about})


@asynccontextmanager
async def audit_call(route: Route, call: RouteCall, request: web.Request) -> AsyncIterator[None]:
    """Context manager: a call runs in the block. A change is written before it begins, and its outcome, which
    is durable at the end of the block, after it. Raises StorageFull before the block."""
    audit = call.services.access.audit
    fields = {"request": call.id, **_actor(call.caller), "call": _call(route), **_place(request)}
    fields |= objects_of(call)
    if not route.changes:
        if route.scope is not None:
            log_access(audit, call.caller, fields)
        yield
        return
    number = await audit.begin({"event": BEGUN, **fields})
    outcome = "internal"
    try:
        yield
        outcome = "ok"
    except Exception as error:
        found = known(error)
        outcome = "internal" if found is None else found.kind
        raise
    finally:
        ended = {**fields, **objects_of(call), "begun": number, "outcome": outcome}
        await _end(audit, {"event": CHANGE, **ended})


@contextmanager
def recorded_locally(
    log: AuditLog, what: str, objects: Mapping[str, Any] | None = None, tenant: str | None = None
) -> Iterator[dict[str, Any]]:
    """Context manager: a command changes the data folder itself, without a server, in the block.

    what: the command or the call. objects: the names of what it changes; the block may add others to what
    the context manager yields. Raises StorageFull before the block.
    """
    named = dict(objects or {})
    fields: Fields = {"who": f"os:{_user()}", "call": what, "tenant": tenant, "address": "local"}
    log.keep_reserve()
    number = log.append([{"event": BEGUN, **fields, "object": dict(named)}], sync=False)
    outcome = "internal"
    try:
        yield named
        outcome = "ok"
    except BaseException as error:
        found = known(error) if isinstance(error, Exception) else None
        outcome = "internal" if found is None else found.kind
        raise
    finally:
        ended = {**fields, "object": named, "begun": number, "outcome": outcome}
        log.append([{"event": CHANGE, **ended}], sync=True, must=True)


def note_reply(call: RouteCall, reply: Reply | web.StreamResponse) -> None:
    """Note what a call has made, such as the job or the key, for the log."""
    if not isinstance(reply, Reply):
        return
    if reply.location is not None:
        call.noted["job"] = reply.location.rpartition("/")[2]
    for name in ("key_id", "id"):
        made = getattr(reply.body, name, None)
        if isinstance(made, str) and re.fullmatch(ID_PATTERN, made):
            call.noted[name] = made


def log_server_event(audit: Audit, what: str) -> None:
    """Write that the server has started or stopped."""
    audit.later(
        {"event": SERVER, "who": f"os:{_user()}", "outcome": what, "object": {"process": os.getpid()}}
    )


async def _end(audit: Audit, fields: Fields) -> None:
    try:
        await audit.end(fields)
    except StorageFull as error:
        raise StorageFull(
            f"the call ended ({fields['outcome']}), but the disk has no room for its line in the audit log: "
            "free some space, and look whether the change was made"
        ) from error


def _actor(caller: Caller) -> Fields:
    who = "administrator" if caller.tenant is None else caller.tenant
    return {"who": who, "key": caller.key_id}


def _call(route: Route) -> str:
    return f"{route.method} {route.path}"


def _place(request: web.BaseRequest) -> Fields:
    """The client's address. `forwarded` is what the client, or a proxy in front of the server, says of it."""
    fields: Fields = {"address": request.remote or "local"}
    forwarded = request.headers.get("X-Forwarded-For", "")
    if _ADDRESSES.fullmatch(forwarded):
        fields["forwarded"] = forwarded
    return fields


def objects_of(call: RouteCall) -> Fields:
    """The names of what a call is about, and the tenant whose it is."""
    named = {name: value for name, value in call.path.items() if len(value) <= 200}
    for name in NAMED:
        value = getattr(call.body, name, None)
        if isinstance(value, str) and _NAME.fullmatch(value):
            named.setdefault(name, value)
    owner = named["model"].partition(".")[0] if "model" in named else named.get("tenant")
    return {"tenant": call.caller.tenant or owner, "object": {**named, **call.noted}}


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return str(os.getuid())
