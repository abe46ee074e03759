"""Spans of real requests: in memory, and received by a small collector over HTTP."""

from __future__ import annotations

import asyncio
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from hmi.api.http.observed import job_spans
from hmi.core import JobRecord, now
from hmi.telemetry.otlp import _SELDOM, OtlpTracer
from hmi.telemetry.tracing import span, trace_id_in
from tests.hmi.labs.api_world import World, made_folder, running

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


@dataclass
class Collector:
    """A collector of spans on a free port, as OTLP over HTTP has it."""

    port: int = 0
    requests: list[ExportTraceServiceRequest] = field(default_factory=list)

    def names(self) -> set[str]:
        scopes = [s for r in self.requests for resource in r.resource_spans for s in resource.scope_spans]
        return {span.name for scope in scopes for span in scope.spans}


@contextmanager
def collecting() -> Iterator[Collector]:
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.requests.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        found.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield found
        server.shutdown()


@pytest.fixture
async def folder(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    tiny_source: Path,
    capsys: pytest.CaptureFixture[str],
) -> Path:
    """A data folder of its own, with the model acme.m."""
    made = await asyncio.to_thread(made_folder, tmp_path_factory.getbasetemp(), tiny_source, capsys)
    shutil.copytree(made, tmp_path / "d")
    return tmp_path / "d"


def using(world: World, sample: float = 1.0) -> tuple[OtlpTracer, InMemorySpanExporter]:
    """Let a server keep its spans in memory."""
    exporter = InMemorySpanExporter()
    world.services.monitoring.tracer = tracer = OtlpTracer(sample, exporter)
    return tracer, exporter


async def ask(world: World, **headers: str) -> Any:
    texts = {"inputs": ["market stock price", "cell gene"]}
    status, _, answer = await world.call("POST", "/infer/acme.m", texts, headers=headers)
    assert status == 200
    return answer


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {found.name: found for found in exporter.get_finished_spans()}


async def test_a_request_is_a_tree_of_spans(folder: Path) -> None:
    async with running(folder) as world:
        tracer, exporter = using(world)
        answer = await ask(world, traceparent=f"00-{TRACE}-{PARENT}-01")
        missing, _, _ = await world.call("GET", "/manage/models/acme.none")
        await world.call("GET", "/healthz")
        await asyncio.to_thread(tracer.flush)
        spans = by_name(exporter)
    assert missing == 404
    assert set(spans) == {
        "POST /infer/{model}",
        "engine",
        "queue",
        "retrieve",
        "compute",
        "encode",
        "GET /manage/models/{model}",
    }
    root = spans["POST /infer/{model}"]
    assert root.context is not None
    assert root.parent is not None
    assert (f"{root.context.trace_id:032x}", f"{root.parent.span_id:016x}") == (TRACE, PARENT)
    assert answer.headers["traceresponse"] == f"00-{TRACE}-{root.context.span_id:016x}-01"
    about = dict(root.attributes or {})
    assert about["hmi.tenant"] == "acme"
    assert about["hmi.model"] == "acme.m"
    assert (about["hmi.outcome"], about["http.response.status_code"]) == ("ok", 200)
    assert about["hmi.request_id"] == answer.headers["X-Request-Id"]
    computed = dict(spans["compute"].attributes or {})
    assert computed["hmi.texts"] == 2
    assert int(str(computed["hmi.tokens"])) >= 6
    assert computed["hmi.version.model"] == 1
    assert computed["hmi.domain"] == "tiny"
    assert any(name.startswith("hmi.plot.") for name in spans["retrieve"].attributes or {})
    assert dict(spans["GET /manage/models/{model}"].attributes or {})["hmi.outcome"] == "not_found"
    order = [spans[name] for name in ("queue", "retrieve", "compute", "encode")]
    times = [(s.start_time, s.end_time) for s in order]
    assert times == sorted(times), "the stages follow one another"
    for child in order:
        assert child.parent is not None
        assert child.parent.span_id == root.context.span_id
        assert child.start_time is not None
        assert root.start_time is not None
        assert root.start_time <= child.start_time


async def test_what_is_not_drawn_has_no_spans(folder: Path) -> None:
    async with running(folder) as world:
        tracer, exporter = using(world, sample=0.0)
        answer = await ask(world)
        assert "traceresponse" not in answer.headers
        await ask(world, traceparent=f"00-{TRACE}-{PARENT}-01")  # the caller has decided
        await asyncio.to_thread(tracer.flush)
        assert {f"{s.context.trace_id:032x}" for s in exporter.get_finished_spans() if s.context} == {TRACE}


async def test_a_collector_receives_spans_and_may_go(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.port}")
        async with running(folder, trace="otlp") as world:
            await ask(world)
            while "POST /infer/{model}" not in collector.names():
                await asyncio.sleep(0.01)
    about = {a.key: a.value.string_value for a in collector.requests[0].resource_spans[0].resource.attributes}
    assert about["service.name"] == "hmi"
    monkeypatch.setattr(_SELDOM, "next", 0.0)
    with closing(socket.create_server(("127.0.0.1", 0))) as gone:
        port = gone.getsockname()[1]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    async with running(folder, trace="otlp") as world:
        for _ in range(20):
            await ask(world)
        while "opentelemetry" not in {r.name.partition(".")[0] for r in caplog.records}:
            await asyncio.sleep(0.01)
        ending = time.monotonic()
    assert time.monotonic() - ending < 30, "a stop does not wait for a collector that is gone"
    told = [r for r in caplog.records if r.name.startswith("opentelemetry")]
    assert len(told) == 1, "it complains, but not of every batch"


def test_a_job_is_a_span() -> None:
    exporter = InMemorySpanExporter()
    tracer = OtlpTracer(1.0, exporter)
    job = JobRecord(job="j1", kind="fine_tune", state="failed", created=now(), tenant="acme")
    record = job_spans(tracer)
    record(job)  # it never began
    record(job.model_copy(update={"started": now(), "ended": now()}))
    tracer.flush()
    (found,) = exporter.get_finished_spans()
    assert found.name == "job fine_tune"
    assert not found.status.is_ok
    assert dict(found.attributes or {})["hmi.job"] == "j1"
    tracer.close()


def test_without_a_request_a_span_is_nothing() -> None:
    with span("engine"):
        pass
    assert trace_id_in(f"00-{TRACE}-{PARENT}-00") == TRACE
    for wrong in (None, "", "00-" + "0" * 32 + f"-{PARENT}-01", "00-xyz-1-1", f"00-{TRACE}\n-{PARENT}-01"):
        assert trace_id_in(wrong) == ""
