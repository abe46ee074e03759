"""The Open Inference Protocol by KServe's clients, unmodified, against a real server."""

from __future__ import annotations

import asyncio

import httpx
import numpy as np
import pytest

from tests.e2e.protocol_lab import MOOD, ProtocolServer
from tests.e2e.test_oip_http import TEXTS, decoded, key_of


def test_over_http(protocol_server: ProtocolServer) -> None:
    asyncio.run(_over_http(protocol_server))


async def _over_http(server: ProtocolServer) -> None:
    from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig
    from kserve.protocol.infer_type import RequestedOutput

    headers, native = key_of(server), server.native(MOOD, TEXTS)["outputs"]
    labels = [each["label"] for each in native]
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:
        assert await client.is_server_live(server.url)
        assert await client.is_server_ready(server.url)
        assert await client.is_model_ready(server.url, MOOD, headers=headers)
        assert not await client.is_model_ready(server.url, "acme.none", headers=headers)
        for binary in (False, True):
            given = InferInput("TEXT", [3], "BYTES")
            given.set_data_from_numpy(np.array(TEXTS, dtype=object), binary_data=binary)
            wanted = [RequestedOutput(n, {"binary_data": binary}) for n in ("LABEL", "SCORE")]
            sent = InferRequest(MOOD, [given], "call-8", request_outputs=wanted)
            answer = await client.infer(server.url, sent, model_name=MOOD, headers=headers)
            label, score = answer.outputs
            assert answer.id == "call-8"
            assert decoded(label.as_numpy()) == labels
            assert np.allclose(score.as_numpy(), [each["score"] for each in native])
        with pytest.raises(httpx.HTTPStatusError, match="there is no model"):
            await client.infer(server.url, sent, model_name="acme.none", headers=headers)
