"""The way of a call over gRPC: admission, key, the receipt of its messages, and the answer to its errors."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn
from urllib.parse import unquote

import grpc

from hmi.api.access.caller import NOBODY, Caller
from hmi.api.body.shares import Holder, Shares
from hmi.api.http.audited import log_access, refuse
from hmi.api.http.dispatch import PASSED
from hmi.api.http.lifecycle import Stopping, Unfinished
from hmi.api.http.observed import HEADER as TRACE_HEADER
from hmi.api.http.observed import Observed
from hmi.api.http.rate_headers import rate_limits
from hmi.api.http.services import Services
from hmi.api.protocols.errors import INTERNAL, Malformed, headers_of, known, status_of
from hmi.api.protocols.native import NATIVE
from hmi.api.rpc.passing import AnotherServersError
from hmi.core import Scope
from hmi.errors import Forbidden, HmiError, Unauthorised
from hmi.stores.layout import without_paths
from hmi.telemetry.context import note_caller
from hmi.telemetry.tracing import Value

_CODES = {
    "malformed": grpc.StatusCode.INVALID_ARGUMENT,
    "unauthorised": grpc.StatusCode.UNAUTHENTICATED,
    "forbidden": grpc.StatusCode.PERMISSION_DENIED,
    "not_found": grpc.StatusCode.NOT_FOUND,
    "method_not_allowed": grpc.StatusCode.UNIMPLEMENTED,
    "conflict": grpc.StatusCode.FAILED_PRECONDITION,
    "cancelled": grpc.StatusCode.FAILED_PRECONDITION,
    "collected": grpc.StatusCode.NOT_FOUND,
    "too_large": grpc.StatusCode.INVALID_ARGUMENT,
    "unsupported_media_type": grpc.StatusCode.INVALID_ARGUMENT,
    "invalid_input": grpc.StatusCode.INVALID_ARGUMENT,
    "invalid_data": grpc.StatusCode.INVALID_ARGUMENT,
    "unsupported_model": grpc.StatusCode.INVALID_ARGUMENT,
    "quota_exceeded": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "damaged": grpc.StatusCode.DATA_LOSS,
    "unavailable": grpc.StatusCode.UNAVAILABLE,
    "deadline_exceeded": grpc.StatusCode.DEADLINE_EXCEEDED,
    "storage_full": grpc.StatusCode.RESOURCE_EXHAUSTED,
}
KIND, RETRY, PUSHBACK = "hmi-error-kind", "retry-after", "grpc-retry-pushback-ms"
"""Trailing metadata of errors: the kind; seconds until another try, also in the form of gRPC's retries."""


def code_of(kind: str) -> grpc.StatusCode:
    """The status code of a kind of error."""
    return _CODES.get(kind, grpc.StatusCode.INTERNAL)


def trailing_of(error: HmiError) -> tuple[tuple[str, str], ...]:
    """The trailing metadata of an error."""
    retry = headers_of(status_of(error.kind, NATIVE), error.details).get("Retry-After")
    own: tuple[tuple[str, str], ...] = ((KIND, error.kind),)
    if retry is None:
        return own
    return (*own, (RETRY, retry), (PUSHBACK, str(int(retry) * 1000)))


log = logging.getLogger("hmi.api")
RECEIVING = 8
"""Messages of one caller that are received at a time. Others wait in the client, by HTTP/2's flow control."""
STREAMS = 128
"""Streams that are open at a time. Each may hold one message that has not come whole."""
STALL_S = 5.0
"""While the server stops, it waits this long for the rest of a call's message."""
REQUEST_ID = "x-request-id"
_SAFE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
Messages = AsyncIterator[bytes]


class _Turns(asyncio.Semaphore):
    """The turns of one caller, and the number of calls that hold one or wait for one."""

    users = 0


@dataclass
class RpcCall:
    """One call, as the service's methods see it."""

    services: Services
    context: Any
    """grpc.aio's context of the call."""
    metadata: Mapping[str, str]
    method: str
    id: str
    arrived: float = field(default_factory=time.monotonic)
    caller: Caller = NOBODY
    outcome: str = "ok"
    stream: bool = False
    passed: bool = False
    """Another server answered the call, or some message of the stream."""
    limits: tuple[tuple[str, str], ...] | None = None
    """The metadata on the tenant's limits by the server that answered last; None: it is this one."""
    sent: int = 0
    """Bytes of the answer so far."""

    @property
    def address(self) -> str:
        """The client's address; "" if it calls through a socket of this machine."""
        peer = unquote(str(self.context.peer()).partition(":")[2])
        return peer.rpartition(":")[0].strip("[]")

    @property
    def counted(self) -> str:
        """The outcome that this server counts. A stream is counted here, whoever answers its messages."""
        return PASSED if self.passed and not self.stream else self.outcome

    def encoded(self, message: Any) -> bytes:
        """The bytes of an answer, which are counted."""
        return self.sends(message.SerializeToString())

    def sends(self, data: bytes) -> bytes:
        """Count the bytes of an answer."""
        self.sent += len(data)
        return data

    def end(self, observed: Observed) -> None:
        """Write the access line and the span of the call."""
        code = _CODES_OF_ENDS.get(self.outcome) or code_of(self.outcome)
        number, failed = code.value[0], code in _OF_SERVER
        about: dict[str, Value] = {
            "rpc.system": "grpc",
            "rpc.method": self.method,
            "rpc.grpc.status_code": number,
        }
        log = self.services.settings.access_log
        observed.end(self.counted, number, self.sent, about, failed=failed, log=log)

    def ends(self) -> float | None:
        """The `time.monotonic()` at which the call's deadline passes; None if it has none."""
        left: float | None = self.context.time_remaining()
        return None if left is None else time.monotonic() + left


class AdmissionGate:
    """Lets calls in, and receives their messages. For one event loop."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._turns: dict[Holder, _Turns] = {}
        self._streams = Shares(STREAMS, "open streams")
        self._waits: dict[asyncio.Timeout, float] = {}
        """The waits for messages, and for how long each may go on once the server stops, in seconds."""
        self._leaving = False

    def stop(self) -> None:
        """Give up messages that do not arrive soon, and end streams that wait for one. The server drains."""
        self._leaving = True
        now = asyncio.get_running_loop().time()
        for wait, stall_s in self._waits.items():
            wait.reschedule(min(now + stall_s, wait.when() or now))

    @asynccontextmanager
    async def call(
        self, method: str, scope: Scope | None, context: Any, *, stream: bool = False
    ) -> AsyncIterator[RpcCall]:
        """Context manager: a call is served in the block. An error of the block, or of the admission, becomes
        the call's status.

        scope: None if it needs no key. stream: the call ends when the server stops; any other is answered.
        """
        services = self._services
        metadata = {str(name).lower(): str(value) for name, value in context.invocation_metadata() or ()}
        given = metadata.get(REQUEST_ID, "")
        call = RpcCall(
            services,
            context,
            metadata,
            method,
            given if _SAFE_ID.fullmatch(given) else uuid.uuid4().hex,
            stream=stream,
        )
        # Its context stays current for the rest of this task, which serves this call alone.
        observed = Observed(metadata, call.id, "grpc", method, services.monitoring.tracer if scope else None)
        try:
            if scope is not None:
                services.lifecycle.admit()
                call.caller = self._identified(call, scope)
                note_caller(tenant=call.caller.tenant, key_id=call.caller.key_id)
            with (
                services.intake.places.loan(call.caller.tenant, 1 if scope else 0),
                self._streams.loan(call.caller.tenant, 1) if stream else services.lifecycle.in_flight,
            ):
                await context.send_initial_metadata(_initial(observed))
                yield call
                context.set_trailing_metadata(self._limits(call))
        except asyncio.CancelledError:
            call.outcome = "client_gone"
            raise
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # the edge of the process: every error becomes a status
            await self._abort(call, error)
        finally:
            services.monitoring.metrics.request(
                f"grpc {method}", call.counted, time.monotonic() - call.arrived
            )
            call.end(observed)

    async def message(self, call: RpcCall, messages: Messages) -> bytes:
        """The message of a call; b"" if it sends none.

        Raises Malformed if it takes too long, and Unfinished if it is not there soon after the server began
        to stop.
        """
        async with self._turn(call.caller.tenant):
            return await self._next(messages, self._services.settings.body_idle_s, STALL_S) or b""

    async def next_message(self, messages: Messages) -> bytes | None:
        """The next message of a stream; None if it sends no more. Raises as `message`."""
        return await self._next(messages, self._services.settings.idle_s, 0.0)

    async def _next(self, messages: Messages, idle_s: float, stall_s: float) -> bytes | None:
        try:
            async with asyncio.timeout(min(stall_s, idle_s) if self._leaving else idle_s) as wait:
                self._waits[wait] = stall_s
                try:
                    return await anext(messages, None)
                finally:
                    del self._waits[wait]
        except TimeoutError as error:
            raise self._too_late(idle_s) from error

    @asynccontextmanager
    async def _turn(self, holder: Holder) -> AsyncIterator[None]:
        turns = self._turns.setdefault(holder, _Turns(RECEIVING))
        turns.users += 1
        try:
            async with turns:
                yield
        finally:
            turns.users -= 1
            if not turns.users:
                del self._turns[holder]

    def _too_late(self, idle_s: float) -> HmiError:
        if self._leaving:
            return Unfinished("the server is stopping and no message has come: call again in a few seconds")
        return Malformed(f"no message has come for {idle_s:g} seconds: send it sooner, or end the call")

    def _identified(self, call: RpcCall, scope: Scope) -> Caller:
        """The caller of a call. Writes a refusal, and an administrator's call, to the audit log."""
        audit = self._services.access.audit
        about = {"request": call.id, "call": f"grpc {call.method}", "address": call.address or "local"}
        try:
            caller = self._services.access.auth.caller_no_browser(call.metadata, scope)
        except (Unauthorised, Forbidden) as error:
            refuse(audit, error, about)
            raise
        log_access(audit, caller, about)
        return caller

    def _limits(self, call: RpcCall) -> tuple[tuple[str, str], ...]:
        """The trailing metadata that tells a tenant what it may still send."""
        if call.limits is not None:
            return call.limits
        if call.caller.tenant is None:
            return ()
        limits = rate_limits(self._services.inference.rates, call.caller.tenant)
        return tuple((name.lower(), value) for name, value in limits.items())

    async def _abort(self, call: RpcCall, error: Exception) -> NoReturn:
        """End a call with the status of an error."""
        ours, message = client_error(call, error)
        call.outcome = ours.kind
        trailing = (*trailing_of(ours), *self._limits(call), (REQUEST_ID, call.id))
        await call.context.abort(code_of(ours.kind), message, trailing)
        raise AssertionError("abort raises")


def _initial(observed: Observed) -> tuple[tuple[str, str], ...]:
    """The initial metadata of an answer."""
    context = observed.context
    known = ((REQUEST_ID, context.request_id),)
    return known if context.trace is None else (*known, (TRACE_HEADER, context.trace.traceresponse))


def client_error(call: RpcCall, error: Exception) -> tuple[HmiError, str]:
    """Return the error that the client gets, and its message. Errors of the server are logged."""
    services, ours = call.services, known(error)
    if ours is None:
        log.error("request %s: %s failed", call.id, call.method, exc_info=error)
        ours = HmiError(INTERNAL)
    elif code_of(ours.kind) in _OF_SERVER and not isinstance(ours, (Stopping, AnotherServersError)):
        services.monitoring.limited_log.warning(
            ours.kind, "request %s: %s: %s", call.id, ours.kind, ours.message
        )
    # The log names files, but a caller must not learn where they lie.
    return ours, without_paths(ours.message, services.settings)


_OF_SERVER = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.DATA_LOSS,
    grpc.StatusCode.INTERNAL,
)
"""The codes of errors that are logged, as HTTP's statuses from 500 on are."""
_CODES_OF_ENDS = {"ok": grpc.StatusCode.OK, "client_gone": grpc.StatusCode.CANCELLED}
"""The codes of calls that no error ended, by outcome."""
