"""Observation of requests: the context of their log lines, their spans, their lines in the access log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextvars import Token
from datetime import datetime
from typing import TYPE_CHECKING

from hmi.core import JobRecord
from hmi.telemetry.context import CURRENT, RequestContext
from hmi.telemetry.tracing import Tracer, Value, trace_id_in

if TYPE_CHECKING:
    from aiohttp import web

access = logging.getLogger("hmi.access")
QUIET = ("/healthz", "/readyz", "/metrics")
"""Routes that machines call every few seconds: they have no span."""
HEADER = "traceresponse"
"""The header that tells a caller the trace of its request: W3C Trace Context, level 2."""


class Observed:
    """One call from its head to its end. Log lines in between carry its context."""

    def __init__(
        self, headers: Mapping[str, str], request_id: str, method: str, route: str, tracer: Tracer | None
    ) -> None:
        """headers: of the call, among them `traceparent`. method, route: its name in the log and the trace.
        tracer: None if it has no span."""
        self._method, self._route, self._began = method, route, time.monotonic()
        parent = headers.get("traceparent")
        self.context = RequestContext(request_id, trace_id_in(parent) if parent else "")
        if tracer is not None and route not in QUIET:
            self.context.trace = tracer.begin(headers)
            if self.context.trace is not None:
                self.context.trace_id = self.context.trace.trace_id
        self._token: Token[RequestContext | None] = CURRENT.set(self.context)

    def end(
        self, outcome: str, status: int, size: int, about: Mapping[str, Value], *, failed: bool, log: bool
    ) -> None:
        """End the call. status: of its protocol. size: the answer's bytes. about: further attributes of the
        span. failed: by the server's fault. log: whether the call gets an access line."""
        if log:
            self._log(status, size, outcome)
        context, trace = self.context, self.context.trace
        if trace is None:
            return
        known = {"hmi.tenant": context.tenant, "hmi.model": context.model}
        attributes = {**about, "hmi.outcome": outcome, "hmi.request_id": context.request_id}
        attributes.update({name: value for name, value in known.items() if value})
        trace.end(f"{self._method} {self._route}", attributes, outcome if failed else None)

    def end_http(self, outcome: str, response: web.StreamResponse | None, *, log: bool) -> None:
        """End a request. response: None if its client has gone. Later log lines have another context."""
        status = 499 if response is None else response.status
        size = 0 if response is None else (response.content_length or response.body_length)
        about: dict[str, Value] = {
            "http.request.method": self._method,
            "http.route": self._route,
            "http.response.status_code": status,
        }
        self.end(outcome, status, size, about, failed=status >= 500, log=log)
        CURRENT.reset(self._token)

    def _log(self, status: int, size: int, outcome: str) -> None:
        ms = round((time.monotonic() - self._began) * 1e3, 3)
        key, method = self.context.key_id or "-", self._method
        fields = {"method": method, "route": self._route, "status": status, "outcome": outcome}
        fields |= {"duration_ms": ms, "bytes": size, "key": key}
        text = "%s %s %d %.1f ms %d bytes key %s"
        access.info(text, method, self._route, status, ms, size, key, extra={"fields": fields})


def job_spans(tracer: Tracer) -> Callable[[JobRecord], None]:
    """Return a function that records the span of a job that has ended."""

    def record(job: JobRecord) -> None:
        if job.started is None or job.ended is None:
            return
        begin, end = (datetime.fromisoformat(at).timestamp() for at in (job.started, job.ended))
        known = {"hmi.tenant": job.tenant, "hmi.model": job.spec.get("model")}
        about: dict[str, Value] = {name: str(value) for name, value in known.items() if value}
        about |= {"hmi.job": job.job, "hmi.job.kind": job.kind, "hmi.outcome": job.state}
        tracer.job(f"job {job.kind}", begin, end, about, job.state != "failed")

    return record
