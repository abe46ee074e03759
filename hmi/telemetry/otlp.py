"""Sends spans to an OpenTelemetry collector, by OTLP over HTTP. Needs the extra `otel`.

The variables of OpenTelemetry name the collector: OTEL_EXPORTER_OTLP_ENDPOINT, …_HEADERS, …_CERTIFICATE,
OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_BSP_*. Spans wait in a bounded queue, and a thread of its
own sends them. If the queue is full, since the collector is slow or gone, spans are dropped.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

import hmi
from hmi.errors import InvalidInput
from hmi.telemetry.tracing import Value

try:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import Tracer, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as missing:
    raise InvalidInput(
        "trace = 'otlp' needs OpenTelemetry: run pip install 'hmi-server[otel]', or set trace to off",
        field="trace",
    ) from missing

CLOSE_S = 3.0
"""Longest wait for the last spans when the server stops."""
COMPLAIN_S = 60.0
"""Least time between two log lines that say that spans cannot be sent."""
_W3C = TraceContextTextMapPropagator()


@dataclass(frozen=True)
class OtlpTrace:
    """See `hmi.telemetry.tracing.Trace`."""

    tracer: Tracer
    root: Span
    offset_ns: int
    """Unix time minus monotonic time, in nanoseconds."""

    @property
    def trace_id(self) -> str:
        return format(self.root.get_span_context().trace_id, "032x")

    @property
    def traceresponse(self) -> str:
        context = self.root.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"

    def add(self, name: str, begin: float, end: float, attributes: Mapping[str, Value]) -> None:
        above = set_span_in_context(self.root)
        span = self.tracer.start_span(name, above, attributes=attributes, start_time=self._ns(begin))
        span.end(self._ns(end))

    def end(self, name: str, attributes: Mapping[str, Value], failed: str | None) -> None:
        self.root.update_name(name)
        self.root.set_attributes(attributes)
        if failed is not None:
            self.root.set_status(Status(StatusCode.ERROR, failed))
        self.root.end()

    def _ns(self, at: float) -> int:
        return int(at * 1e9) + self.offset_ns


class OtlpTracer:
    """See `hmi.telemetry.tracing.Tracer`."""

    def __init__(self, sample: float, exporter: SpanExporter | None = None) -> None:
        """sample: the fraction of requests that are traced. exporter: in place of OTLP over HTTP."""
        about = {"service.version": hmi.__version__}
        if not os.environ.get("OTEL_SERVICE_NAME"):
            about["service.name"] = "hmi"
        sampler = ParentBasedTraceIdRatio(sample)
        self._provider = TracerProvider(sampler, Resource.create(about), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(_otlp() if exporter is None else exporter))
        self._tracer = self._provider.get_tracer("hmi", hmi.__version__)
        for name in _COMPLAINERS:
            logging.getLogger(name).addFilter(_SELDOM)

    def begin(self, headers: Mapping[str, str]) -> OtlpTrace | None:
        carrier = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
        above = _W3C.extract(carrier) if carrier else None
        now = time.time_ns()
        root = self._tracer.start_span("request", above, kind=SpanKind.SERVER, start_time=now)
        if not root.is_recording():
            return None
        assert isinstance(self._tracer, Tracer)
        return OtlpTrace(self._tracer, root, now - time.monotonic_ns())

    def job(self, name: str, begin: float, end: float, attributes: Mapping[str, Value], ok: bool) -> None:
        span = self._tracer.start_span(name, attributes=attributes, start_time=int(begin * 1e9))
        if not ok:
            span.set_status(Status(StatusCode.ERROR))
        span.end(int(end * 1e9))

    def flush(self) -> None:
        """Send what is waiting now."""
        self._provider.force_flush()

    def close(self) -> None:
        # The exporter tries again for a while if the collector is gone, and the server must not wait for it.
        closing = threading.Thread(target=self._provider.shutdown, name="hmi-spans", daemon=True)
        closing.start()
        closing.join(CLOSE_S)


class Seldom(logging.Filter):
    """Lets a line through at most every COMPLAIN_S seconds: the exporter complains of every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.next = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.created < self.next:
            return False
        self.next = record.created + COMPLAIN_S
        record.exc_info = None  # a traceback through the HTTP client tells an operator nothing
        return True


_SELDOM = Seldom()
_COMPLAINERS = ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "opentelemetry.sdk._shared_internal")
"""The loggers of the exporter and of the thread that calls it."""


def _otlp() -> SpanExporter:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()
