"""Lets the tenant's own server answer a message of ModelInfer.

It goes there as it came, over HTTP, with the caller's key. The other server checks the key and the message,
and answers as it would have over gRPC.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from hmi.api.access.auth import is_loopback
from hmi.api.http.rate_headers import NAMES
from hmi.api.protocols.base import UNNAMED
from hmi.api.rpc.answering import LEFT, NUMBER, PATH
from hmi.api.rpc.infer import tenant_in
from hmi.errors import HmiError

if TYPE_CHECKING:
    from aiohttp import ClientResponse

    from hmi.api.rpc.admission import RpcCall

CARRIED: Final = ("authorization", "traceparent", "tracestate")
"""The metadata of a call that goes along."""
LONGEST_S: Final = 1e8
"""A deadline that is later than this, in seconds, is sent as this."""


class AnotherServersError(HmiError):
    """The error that another server answered with. That one has logged it."""

    def __init__(self, kind: str, message: str, details: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.details = dict(details)
        vars(self)["kind"] = kind  # of the error, not of the class


async def answered_elsewhere(call: RpcCall, data: bytes, number: int | None) -> bytes | None:
    """The bytes of the ModelInferResponse by the tenant's own server; None: this one is to answer.

    data: of the ModelInferRequest. number: of the message in its stream. Raises AnotherServersError.
    """
    servers, call.limits = call.services.servers, None
    tenant = "" if servers is None else call.caller.tenant or tenant_in(data)
    if servers is None or not tenant:
        return None
    headers = _headers(call, number)

    async def send(url: str, more: Mapping[str, str]) -> ClientResponse:
        return await call.services.forwarder.send(f"{url}{PATH}", {**headers, **more}, data)

    async with servers.elsewhere(tenant, send) as answer:
        if answer is None:
            return None
        body = await answer.read()
    call.passed = True
    call.limits = tuple((name.lower(), answer.headers[name]) for name in NAMES if name in answer.headers)
    if answer.status != 200:
        raise _error_in(body)
    return body


def _headers(call: RpcCall, number: int | None) -> dict[str, str]:
    headers = {name: call.metadata[name] for name in CARRIED if name in call.metadata}
    # Without a key, a server trusts programs on its machine, and knows browsers there by the host. None of
    # them speaks gRPC.
    headers |= {"Content-Type": UNNAMED, "Host": "localhost", "X-Request-Id": call.id}
    if call.address and not is_loopback(call.address):
        headers["X-Forwarded-For"] = call.address
    left: float | None = call.context.time_remaining()
    if left is not None:
        headers[LEFT] = f"{min(max(left, 0.0), LONGEST_S):.6f}"
    if number is not None:
        headers[NUMBER] = str(number)
    return headers


def _error_in(body: bytes) -> AnotherServersError:
    given = json.loads(body)["error"]
    return AnotherServersError(given["kind"], given["message"], given["details"])
