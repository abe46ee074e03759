"""gRPC with TLS, without keys, and at the end: every accepted call is answered on SIGTERM."""

from __future__ import annotations

import asyncio
import shutil
import signal
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import InferInput
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc._utils import _get_inference_request

from bench.harness.server import free_port
from tests.e2e.conftest import Home
from tests.e2e.protocols.protocol_lab import MOOD
from tests.hmi.labs.server_lab import serving
from tests.hmi.labs.tls_lab import Authority
from tests.waiting import LIMIT_S

SERVICE = "/inference.GRPCInferenceService"


def channel_to(port: int, authority: Authority) -> Any:
    trusted = grpc.ssl_channel_credentials(authority.file.read_bytes())
    return grpc.aio.secure_channel(
        f"localhost:{port}", trusted, options=[("grpc.use_local_subchannel_pool", 1)]
    )


def request(count: int) -> bytes:
    tensor = InferInput("TEXT", [count], "BYTES")
    tensor.set_data_from_numpy(np.array(["the market is good"] * count, dtype=object))
    made = _get_inference_request(MOOD, [tensor], "", "", None, 0, False, False, 0, None, None)
    return bytes(made.SerializeToString())


async def until_ready(channel: Any) -> None:
    ready = channel.unary_unary(f"{SERVICE}/ServerReady")
    async with asyncio.timeout(LIMIT_S):
        while not messages.ServerReadyResponse.FromString(await ready(b"", wait_for_ready=True)).ready:
            await asyncio.sleep(0.05)


async def test_tls_and_stop(home: Home, tmp_path: Path) -> None:
    data, port, authority = tmp_path / "data", free_port(), Authority.create(tmp_path / "ca")
    shutil.copytree(home.settings.data, data)
    cert, key = authority.issue()
    options = ("--grpc-port", str(port), "--tls-cert", str(cert), "--tls-key", str(key))
    with serving(data, *options) as (_, process):
        async with channel_to(port, authority) as channel:
            await until_ready(channel)
            infer = channel.unary_unary(f"{SERVICE}/ModelInfer")
            assert (
                len(messages.ModelInferResponse.FromString(await infer(request(2))).raw_output_contents) == 6
            )
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await infer(request(1), metadata=(("x-forwarded-for", "10.0.0.1"),))
            assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
            await _renewed(port, authority, tmp_path)
            stream = channel.stream_stream(f"{SERVICE}/ModelStreamInfer")()
            await stream.write(request(1))
            assert await stream.read()
            # A unary call would show its initial metadata at its end only.
            sending = channel.stream_unary(f"{SERVICE}/ModelInfer")
            calls = [sending(iter([request(128)])) for _ in range(12)]
            for call in calls:
                await call.initial_metadata()  # the server has accepted it
            process.send_signal(signal.SIGTERM)
            for answer in await asyncio.gather(*calls):
                assert messages.ModelInferResponse.FromString(answer).outputs
            assert await stream.code() == grpc.StatusCode.UNAVAILABLE
        assert await asyncio.to_thread(process.wait, LIMIT_S) == 0


async def _renewed(port: int, authority: Authority, folder: Path) -> None:
    """A new certificate serves new connections at once, and the old one's authority no more."""
    other = Authority.create(folder / "other")
    for new, old in zip(other.issue(), authority.issue(), strict=True):
        shutil.copyfile(new, old)
    async with channel_to(port, other) as channel:
        await until_ready(channel)
    async with channel_to(port, authority) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(f"{SERVICE}/ServerLive")(b"", timeout=LIMIT_S)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
