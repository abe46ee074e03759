"""The port of gRPC: admission, messages that do not come, and the port itself."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from bench.harness.server import free_port
from hmi.api.body.shares import Shares
from hmi.api.http.services import Services
from hmi.api.process import server
from hmi.api.process.application import build_services
from hmi.api.rpc import admission
from hmi.api.rpc.server import RpcServer
from hmi.config import Settings
from hmi.errors import Conflict, InvalidInput
from hmi.telemetry.otlp import OtlpTracer
from hmi.tenancy import TenantLimits
from tests.waiting import until

SERVICE = "/inference.GRPCInferenceService"


class Port:
    """A running port, and a channel to it."""

    def __init__(self, services: Services, rpc: RpcServer, channel: Any) -> None:
        self.services, self.rpc, self.channel = services, rpc, channel

    async def status(self, call: Any) -> tuple[str, str, dict[str, str]]:
        """The code, the message and the trailing metadata of a call that fails."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        error = caught.value
        return error.code().name, error.details() or "", dict(error.trailing_metadata())


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[Port]:
    """A port whose services serve, but whose engine has not been started."""
    services = build_services(Settings(data=tmp_path, grpc_port=free_port()))
    rpc = RpcServer(services)
    await rpc.start()
    services.lifecycle.phase = "serving"
    try:
        async with grpc.aio.insecure_channel(rpc.address) as channel:
            yield Port(services, rpc, channel)
    finally:
        await rpc.stop()
        services.manager.close()
        services.intake.bodies.close()


async def test_health_calls_are_answered_while_others_are_refused(port: Port) -> None:
    port.services.lifecycle.phase = "compiling"
    ready = port.channel.unary_unary(f"{SERVICE}/ServerReady")
    assert await ready(b"") == b"", "false is not written"
    assert await port.channel.unary_unary(f"{SERVICE}/ServerLive")(b"") == b"\x08\x01"
    code, message, trailing = await port.status(port.channel.unary_unary(f"{SERVICE}/ModelInfer")(b""))
    assert (code, trailing["hmi-error-kind"]) == ("UNAVAILABLE", "unavailable")
    assert message.startswith("the server is compiling")
    assert (trailing["retry-after"], trailing["grpc-retry-pushback-ms"]) == ("2", "2000")
    assert trailing["x-request-id"]


async def test_a_key_is_checked_before_a_message_is_read(port: Port) -> None:
    port.services.manager.create_key(None, ("admin",))
    never = port.channel.stream_unary(f"{SERVICE}/ModelInfer")
    for metadata in ((), (("authorization", "Bearer no"),), (("authorization", "Basic no"),)):
        call = never(metadata=metadata)  # it sends no message
        assert (await port.status(call))[0] == "UNAUTHENTICATED"
    _, key = port.services.manager.create_key(None, ("manage",))
    call = never(metadata=(("authorization", f"Bearer {key}"),))
    assert (await port.status(call))[:2] == (
        "PERMISSION_DENIED",
        "this key may not do that: use a key with the scope 'infer'",
    )


async def test_a_call_has_an_access_line_and_a_span(port: Port, caplog: pytest.LogCaptureFixture) -> None:
    exporter = InMemorySpanExporter()
    port.services.monitoring.tracer = tracer = OtlpTracer(1.0, exporter)
    port.services.settings = replace(port.services.settings, access_log=True)
    port.services.manager.create_tenant("acme")
    _, key = port.services.manager.create_key("acme", ("infer",))
    trace = "0af7651916cd43dd8448eb211c80319c"
    metadata = (("authorization", f"Bearer {key}"), ("traceparent", f"00-{trace}-b7ad6b7169203331-01"))
    with caplog.at_level(logging.INFO, "hmi.access"):
        asked = port.channel.unary_unary(f"{SERVICE}/ModelMetadata")(b"\x0a\x06acme.m", metadata=metadata)
        initial = dict(await asked.initial_metadata())
        assert (await port.status(asked))[0] == "NOT_FOUND"
        await port.channel.unary_unary(f"{SERVICE}/ServerLive")(b"")
    await asyncio.to_thread(tracer.flush)
    lines = [(r.fields["method"], r.fields["route"], r.fields["status"]) for r in access_lines(caplog)]
    assert lines == [("grpc", "ModelMetadata", 5), ("grpc", "ServerLive", 0)]
    assert [r.fields["bytes"] for r in access_lines(caplog)] == [0, 2]
    (found,) = exporter.get_finished_spans()  # health calls have none
    assert found.name == "grpc ModelMetadata"
    assert initial["traceresponse"].startswith(f"00-{trace}-")
    known = {"hmi.tenant": "acme", "hmi.outcome": "not_found", "rpc.grpc.status_code": 5}
    assert known.items() <= dict(found.attributes or {}).items()


def access_lines(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [record for record in caplog.records if record.name == "hmi.access"]


async def test_a_tenant_with_limits_learns_what_is_left(port: Port) -> None:
    port.services.manager.create_tenant("acme", limits=TenantLimits(requests_per_s=20))
    _, key = port.services.manager.create_key("acme", ("infer",))
    metadata = (("authorization", f"Bearer {key}"),)
    asked = port.channel.unary_unary(f"{SERVICE}/RepositoryIndex")(b"", metadata=metadata)
    assert await asked == b""
    trailing = dict(await asked.trailing_metadata())
    assert trailing["ratelimit-policy"] == '"requests";q=200;w=10'
    assert trailing["ratelimit"] == '"requests";r=200;t=0'
    none = port.channel.unary_unary(f"{SERVICE}/ModelMetadata")(b"\x0a\x06acme.m", metadata=metadata)
    assert (await port.status(none))[2]["ratelimit"] == '"requests";r=200;t=0'


async def test_a_message_that_does_not_come(port: Port) -> None:
    port.services.settings = replace(port.services.settings, body_idle_s=1)
    never = port.channel.stream_unary(f"{SERVICE}/ModelInfer")
    code, message, _ = await port.status(never())
    assert (code, message) == (
        "INVALID_ARGUMENT",
        "no message has come for 1 seconds: send it sooner, or end the call",
    )
    assert not port.services.lifecycle.in_flight.count
    assert not port.services.intake.places.used


async def test_a_caller_sends_few_messages_at_a_time(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "RECEIVING", 2)
    never = port.channel.stream_unary(f"{SERVICE}/ModelMetadata")
    slow = [never() for _ in range(2)]
    for call in slow:
        await call.initial_metadata()
    asked = port.channel.stream_unary(f"{SERVICE}/ModelMetadata")
    waiting = asked(iter([b"\x0a\x06acme.m"]))
    await waiting.initial_metadata()
    await asyncio.sleep(0.05)
    assert not waiting.done()
    slow[0].cancel()
    assert (await port.status(waiting))[0] == "NOT_FOUND"
    slow[1].cancel()
    await until(lambda: not port.services.lifecycle.in_flight.count)


async def test_a_caller_has_few_streams(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port.rpc.gate, "_streams", Shares(4, "open streams"))
    streams = [port.channel.stream_stream(f"{SERVICE}/ModelStreamInfer")() for _ in range(2)]
    for each in streams:
        await each.initial_metadata()
    refused = port.channel.stream_stream(f"{SERVICE}/ModelStreamInfer")()
    assert await refused.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "too many open streams" in await refused.details()
    streams[0].cancel()
    await until(lambda: port.rpc.gate._streams.used == 1)
    await port.channel.stream_stream(f"{SERVICE}/ModelStreamInfer")().initial_metadata()


async def test_the_end(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "STALL_S", 0.01)
    call = port.channel.stream_unary(f"{SERVICE}/ModelInfer")()
    stream = port.channel.stream_stream(f"{SERVICE}/ModelStreamInfer")()
    for each in (call, stream):
        await each.initial_metadata()
    port.rpc.gate.stop()
    code, message, trailing = await port.status(call)
    assert (code, trailing["retry-after"]) == ("UNAVAILABLE", "2")
    assert message == "the server is stopping and no message has come: call again in a few seconds"
    assert await stream.code() == grpc.StatusCode.UNAVAILABLE
    assert not port.services.lifecycle.in_flight.count


async def test_an_error_of_ours_is_internal(port: Port, caplog: pytest.LogCaptureFixture) -> None:
    port.services.manager.create_tenant("acme")
    port.services.engine.infer = None  # type: ignore[method-assign,assignment]
    port.services.inference.tally.models = None  # type: ignore[method-assign,assignment]
    call = port.channel.unary_unary(f"{SERVICE}/ModelStatistics")(b"")
    code, message, trailing = await port.status(call)
    assert (code, trailing["hmi-error-kind"]) == ("INTERNAL", "internal")
    assert message.startswith("something went wrong inside the server")
    assert trailing["x-request-id"] in caplog.text


async def test_a_port_in_use(port: Port) -> None:
    with pytest.raises(Conflict, match="for gRPC: stop what listens there"):
        RpcServer(port.services)


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hmi.api.rpc.server", None)
    services = build_services(Settings(data=tmp_path, grpc_port=free_port()))
    try:
        with pytest.raises(InvalidInput, match=r"pip install 'hmi-server\[grpc\]'"):
            server._rpc_server(services)
    finally:
        services.manager.close()
