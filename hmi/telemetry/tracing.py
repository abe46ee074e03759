"""Spans of requests and jobs, without OpenTelemetry itself. `hmi.telemetry.otlp` sends them to a collector.

While nothing is traced, a span costs one look at a context variable.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from hmi.config import Settings
from hmi.telemetry.context import CURRENT

Value = str | int | float | bool
_NOTHING = nullcontext()
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")


class Trace(Protocol):
    """The spans of one request that is traced. Times are those of `time.monotonic()`, in seconds."""

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits."""
        ...

    @property
    def traceresponse(self) -> str:
        """The header by which the caller finds the trace."""
        ...

    def add(self, name: str, begin: float, end: float, attributes: Mapping[str, Value]) -> None:
        """Add a finished span below the request's."""
        ...

    def end(self, name: str, attributes: Mapping[str, Value], failed: str | None) -> None:
        """End the request's span under its final name. failed: the message of a server's error."""
        ...


class Tracer(Protocol):
    """Decides what is traced, and sends it. No method blocks or raises."""

    def begin(self, headers: Mapping[str, str]) -> Trace | None:
        """Begin the span of a request with these headers; None if it is not drawn for tracing."""
        ...

    def job(self, name: str, begin: float, end: float, attributes: Mapping[str, Value], ok: bool) -> None:
        """Record a job that has ended. Times are Unix times in seconds."""
        ...

    def close(self) -> None:
        """Send what is left, for a few seconds at most."""
        ...


def tracer_of(settings: Settings) -> Tracer | None:
    """Return the tracer that the settings ask for; None without one.

    Raises InvalidInput if the extra `otel` is missing.
    """
    if settings.trace == "off":
        return None
    from hmi.telemetry.otlp import OtlpTracer

    return OtlpTracer(settings.trace_sample)


def span(name: str, **attributes: Value) -> AbstractContextManager[None]:
    """Context manager: the block is a span of the current request, if the request is traced."""
    current = CURRENT.get()
    if current is None or current.trace is None:
        return _NOTHING
    return _measure_span(current.trace, name, attributes)


def trace() -> Trace | None:
    """Return the current request's spans; None if it is not traced."""
    current = CURRENT.get()
    return None if current is None else current.trace


def trace_id_in(traceparent: str | None) -> str:
    """Return the trace id of a W3C `traceparent` header; "" if there is none."""
    found = _TRACEPARENT.fullmatch(traceparent) if traceparent else None
    return found[1] if found is not None and found[1].strip("0") else ""


@contextmanager
def _measure_span(trace: Trace, name: str, attributes: Mapping[str, Value]) -> Iterator[None]:
    begun = time.monotonic()
    try:
        yield
    finally:
        trace.add(name, begun, time.monotonic(), attributes)
