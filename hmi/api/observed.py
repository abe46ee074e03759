"""Observation of requests: the context of their log lines, their spans, their lines in the access log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
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
    """One request from its head to its end. Log lines in between carry its context."""

    def __init__(self, request: web.Request, request_id: str, route: str, tracer: Tracer | None) -> None:
        self._request, self._route, self._began = request, route, time.monotonic()
        parent = request.headers.get("traceparent")
        self.context = RequestContext(request_id, trace_id_in(parent) if parent else "")
        if tracer is not None and route not in QUIET:
            self.context.trace = tracer.begin(request.headers)
            if self.context.trace is not None:
                self.context.trace_id = self.context.trace.trace_id
        self._token: Token[RequestContext | None] = CURRENT.set(self.context)

    def end(self, outcome: str, response: web.StreamResponse | None, log: bool) -> None:
        """End the request. response: None if its client has gone. log: whether it gets an access line."""
        status = 499 if response is None else response.status
        size = 0 if response is None else (response.content_length or response.body_length)
        if log:
            self._log(status, size, outcome)
        if self.context.trace is not None:
            self._end_span(status, outcome)
        CURRENT.reset(self._token)

    def _log(self, status: int, size: int, outcome: str) -> None:
        ms = round((time.monotonic() - self._began) * 1e3, 3)
        key, method = self.context.key_id or "-", self._request.method
        fields = {"method": method, "route": self._route, "status": status, "outcome": outcome}
        fields |= {"duration_ms": ms, "bytes": size, "key": key}
        text = "%s %s %d %.1f ms %d bytes key %s"
        access.info(text, method, self._route, status, ms, size, key, extra={"fields": fields})

    def _end_span(self, status: int, outcome: str) -> None:
        context, trace = self.context, self.context.trace
        assert trace is not None
        attributes: dict[str, Value] = {
            "http.request.method": self._request.method,
            "http.route": self._route,
            "http.response.status_code": status,
            "hmi.outcome": outcome,
            "hmi.request_id": context.request_id,
        }
        known = {"hmi.tenant": context.tenant, "hmi.model": context.model}
        attributes.update({name: value for name, value in known.items() if value})
        trace.end(f"{self._request.method} {self._route}", attributes, outcome if status >= 500 else None)


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
