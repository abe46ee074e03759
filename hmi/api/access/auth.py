"""Authentication and scopes: who calls, and what the caller may reach.

Until an administrator's key exists, a server on loopback treats a request without a key as the
administrator's. A key that is sent is checked nevertheless. A key that is not HMI's is ignored exactly where
the same request without a key is admitted: many clients of other servers cannot leave theirs out. On any
other host every request needs a key.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from hmi.api.access.caller import ADMINISTRATOR, ALL, Caller
from hmi.core import KeyRecord, Scope
from hmi.errors import Forbidden, InvalidInput, Unauthorised
from hmi.tenancy import KEY_PREFIX

if TYPE_CHECKING:
    from aiohttp import web
else:
    from hmi.api.lazy_import import web

log = logging.getLogger("hmi.api")
PROXIES = frozenset({"forwarded", "via", "x-real-ip"})
"""Headers that only a proxy adds, besides X-Forwarded-*."""


class KeyUse(Protocol):
    """Learns when keys are used."""

    def note_use(self, key_id: str) -> None: ...


class ExpiredKey(Unauthorised):
    """The answer to a key that has expired. Only who holds the key gets it."""

    def __init__(self, key: KeyRecord) -> None:
        super().__init__(
            f"this key expired at {key.expires}: use the one that follows it, or have a new one issued"
        )
        self.key = key


class NotOurKey(Unauthorised):
    """The answer to a key that HMI cannot have issued."""

    def __init__(self) -> None:
        super().__init__(
            f"this key is unknown, and HMI's keys begin with {KEY_PREFIX!r}: send one of those, or have a "
            "new one issued"
        )


class KeyRegistry(Protocol):
    """The part of the registry that knows keys. A read takes microseconds, so it runs on the event loop."""

    @property
    def key_ring(self) -> KeyUse: ...
    def find_key(self, sha256: str) -> KeyRecord | None: ...
    def keys(self, tenant: str | None) -> list[KeyRecord]: ...


@dataclass(frozen=True)
class Auth:
    """Identifies callers by their keys."""

    keys: KeyRegistry
    loopback: bool
    """The server listens on loopback only."""
    _told: threading.Event = field(default_factory=threading.Event, compare=False, repr=False)
    """Set once the log says that a key was ignored."""

    def open(self) -> bool:
        """Return whether a request without a key is the administrator's."""
        return self.loopback and not has_admin_key(self.keys)

    def caller(self, request: web.BaseRequest, scope: Scope | None) -> Caller:
        """The caller of a request.

        Raises Unauthorised (a missing, malformed, unknown or expired key) and Forbidden (a key without
        `scope`, or a request without a key that came from a browser or through a proxy).
        """
        return self._caller(request.headers.get("Authorization"), scope, partial(self._without_key, request))

    def caller_no_browser(self, headers: Mapping[str, str], scope: Scope | None) -> Caller:
        """The caller of a request that no browser can send. headers: by name in lower case.

        Raises as `caller`.
        """
        return self._caller(headers.get("authorization"), scope, partial(self._local, headers))

    def is_admin(self, request: web.BaseRequest) -> bool:
        """Return whether an administrator calls. For calls that need no key, but show administrators more."""
        try:
            self.caller(request, "admin")
        except (Unauthorised, Forbidden):
            return False
        return True

    def _caller(self, header: str | None, scope: Scope | None, without_key: Callable[[], Caller]) -> Caller:
        """The caller by the header Authorization. without_key: who the caller is if no key is sent."""
        if header is None:
            return without_key()
        try:
            return self._bearer(header, scope)
        except NotOurKey as unknown:
            try:
                caller = without_key()
            except (Unauthorised, Forbidden):
                raise unknown from None
        self._tell_ignored()
        return caller

    def _bearer(self, header: str, scope: Scope | None) -> Caller:
        kind, _, key = header.partition(" ")
        if kind.lower() != "bearer" or not key.strip():
            raise Unauthorised("the Authorization header is malformed: send 'Authorization: Bearer KEY'")
        caller = self._holder(key.strip())
        if scope is not None and scope not in caller.scopes:
            raise Forbidden(f"this key may not do that: use a key with the scope {scope!r}", scope=scope)
        return caller

    def _holder(self, key: str) -> Caller:
        sha256 = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
        record = self.keys.find_key(sha256)
        if record is None or not hmac.compare_digest(record.sha256, sha256):
            # Anywhere in it: a key of HMI in quotes, or after a second "Bearer", is still a wrong one.
            if KEY_PREFIX not in key.lower():
                raise NotOurKey
            raise Unauthorised("this key is unknown: check it, or have a new one issued")
        if record.expired:
            raise ExpiredKey(record)
        self.keys.key_ring.note_use(record.key_id)
        return Caller(record.tenant, _effective(record), record.key_id)

    def _without_key(self, request: web.BaseRequest) -> Caller:
        caller = self._local(request.headers)
        _refuse_browsers(request)
        return caller

    def _local(self, headers: Mapping[str, str]) -> Caller:
        """The caller of a request without a key. Raises Unauthorised, and Forbidden behind a proxy."""
        if not self.open():
            raise Unauthorised("this server wants a key: send the header 'Authorization: Bearer KEY'")
        _refuse_proxies(headers)
        return ADMINISTRATOR

    def _tell_ignored(self) -> None:
        if not self._told.is_set():
            self._told.set()
            log.warning(
                "a call sent a key that is not HMI's, and such keys are ignored (this is logged once): every "
                "program on this machine may do everything. 'hmi key create --admin' changes that"
            )


def has_admin_key(keys: KeyRegistry) -> bool:
    """Return whether an administrator's key exists, be it expired: a server whose keys have expired must not
    admit everybody."""
    return any("admin" in key.scopes for key in keys.keys(None))


def is_loopback(host: str) -> bool:
    """Return whether `host`, a name or an address, is a loopback one."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return False


def check_binding(host: str, keys: KeyRegistry) -> None:
    """Raise InvalidInput for a host other than loopback while no administrator's key exists."""
    if not is_loopback(host) and not has_admin_key(keys):
        raise InvalidInput(
            f"without an administrator's key the server listens on loopback only, not on {host}: "
            "make one with 'hmi key create --admin', or leave --host out",
            field="host",
        )


def _effective(record: KeyRecord) -> frozenset[Scope]:
    """The scopes that a key grants: `admin` includes the others, and a tenant's key never has it."""
    scopes: frozenset[Scope] = frozenset(record.scopes)
    if record.tenant is not None:
        return scopes - {"admin"}
    return ALL if "admin" in scopes else scopes


def _refuse_proxies(headers: Mapping[str, str]) -> None:
    """Raise Forbidden for a request through a proxy. A proxy on this machine makes all requests look
    local, so everybody would be the administrator."""
    names = [name.lower() for name in headers]
    through = next((n for n in names if n in PROXIES or n.startswith("x-forwarded-")), None)
    if through is not None:
        raise Forbidden(
            f"this request came through a proxy (header {through}), and the server cannot tell callers apart "
            "without keys: make an administrator's key first with 'hmi key create --admin'"
        )


def _refuse_browsers(request: web.BaseRequest) -> None:
    """Raise Forbidden for a request from a web page, which can reach loopback through the browser.

    Host reveals a page that rebinds its own name to 127.0.0.1, and Origin a request across sites.
    """
    origin = request.headers.get("Origin")
    if not is_loopback(_host(f"//{request.host}")) or (origin is not None and not is_loopback(_host(origin))):
        raise Forbidden(
            "a request without a key must come from a program on this machine: create a key and send it"
        )


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
