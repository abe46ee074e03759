"""Authentication and scopes: who calls, and what the caller may reach.

Until an administrator's key exists, a server on loopback treats a request without a key as the
administrator's. It checks tenants' keys all the same. On any other host every request needs a key.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from aiohttp import web

from hmi.api.caller import ADMINISTRATOR, ALL, Caller
from hmi.core import KeyRecord, Scope
from hmi.errors import Forbidden, InvalidInput, Unauthorised

PROXIES = frozenset({"forwarded", "via", "x-real-ip"})
"""Headers, beside X-Forwarded-*, that only a proxy adds."""


class KeyRing(Protocol):
    """The registry, as far as keys go. Reads of a memory map: microseconds, so they run on the loop."""

    def find_key(self, sha256: str) -> KeyRecord | None: ...
    def keys(self, tenant: str | None) -> list[KeyRecord]: ...


@dataclass(frozen=True)
class Auth:
    """Checks keys. `loopback`: the server listens on loopback only."""

    keys: KeyRing
    loopback: bool

    def open(self) -> bool:
        """Whether a request without a key is the administrator's."""
        return self.loopback and not has_admin_key(self.keys)

    def caller(self, request: web.BaseRequest, scope: Scope | None) -> Caller:
        """Raises Unauthorised (no or unknown key) and Forbidden (a key without `scope`)."""
        header = request.headers.get("Authorization")
        if header is None:
            return self._without_key(request)
        kind, _, key = header.partition(" ")
        if kind.lower() != "bearer" or not key.strip():
            raise Unauthorised("the Authorization header is not of the form 'Bearer KEY'")
        caller = self._bearer(key.strip())
        if scope is not None and scope not in caller.scopes:
            raise Forbidden(f"this key may not do that: use a key with the scope {scope!r}", scope=scope)
        return caller

    def is_admin(self, request: web.BaseRequest) -> bool:
        """Whether an administrator calls, for what answers anybody but shows them more."""
        try:
            self.caller(request, "admin")
        except (Unauthorised, Forbidden):
            return False
        return True

    def _bearer(self, key: str) -> Caller:
        sha256 = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
        record = self.keys.find_key(sha256)
        if record is None or not hmac.compare_digest(record.sha256, sha256):
            raise Unauthorised("this key is unknown: check it, or have a new one issued")
        return Caller(record.tenant, _effective(record), record.key_id)

    def _without_key(self, request: web.BaseRequest) -> Caller:
        if not self.open():
            raise Unauthorised("this server wants a key: send the header 'Authorization: Bearer KEY'")
        _refuse_proxies(request)
        _refuse_browsers(request)
        return ADMINISTRATOR


def has_admin_key(keys: KeyRing) -> bool:
    """Whether an administrator's key exists; those of None are the administrator's."""
    return any("admin" in key.scopes for key in keys.keys(None))


def is_loopback(host: str) -> bool:
    """Whether `host` (a name or an address) is this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return False


def check_binding(host: str, keys: KeyRing) -> None:
    """Refuse to listen beyond loopback while nobody could be told from anybody."""
    if not is_loopback(host) and not has_admin_key(keys):
        raise InvalidInput(
            f"without an administrator's key the server listens on loopback only, not on {host}: "
            "make one with 'hmi key create --admin', or leave --host out",
            field="host",
        )


def _effective(record: KeyRecord) -> frozenset[Scope]:
    """`admin` includes the others, and means nothing on a tenant's key."""
    scopes: frozenset[Scope] = frozenset(record.scopes)
    if record.tenant is not None:
        return scopes - {"admin"}
    return ALL if "admin" in scopes else scopes


def _refuse_proxies(request: web.BaseRequest) -> None:
    """A proxy on this machine makes the whole network's requests look local: they would all be the
    administrator's."""
    names = [name.lower() for name in request.headers]
    through = next((n for n in names if n in PROXIES or n.startswith("x-forwarded-")), None)
    if through is not None:
        raise Forbidden(
            f"this request came through a proxy (header {through}), and the server cannot tell callers "
            "apart without "
            "keys: make an administrator's key first with 'hmi key create --admin'"
        )


def _refuse_browsers(request: web.BaseRequest) -> None:
    """Keep web pages, which can reach loopback through the browser, from acting as the administrator.

    A page that rebinds its own name to 127.0.0.1 shows in Host, a form posted across sites in Origin.
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
