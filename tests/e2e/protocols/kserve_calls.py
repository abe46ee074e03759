"""Calls by KServe's clients. A process of its own makes them: their messages of gRPC have the names of
Triton's, and one process cannot import both.

Reads {"url", "grpc", "key", "model", "texts"} from standard input, and writes what the clients got.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import grpc
import httpx
import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput

MISSING = "acme.none"


async def over_http(given: dict[str, Any]) -> dict[str, Any]:
    url, headers = given["url"], {"Authorization": f"Bearer {given['key']}"}
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:
        found: dict[str, Any] = {
            "live": await client.is_server_live(url),
            "ready": await client.is_server_ready(url),
            "models": [
                await client.is_model_ready(url, m, headers=headers) for m in (given["model"], MISSING)
            ],
            "answers": [],
        }
        for binary in (False, True):
            tensor = InferInput("TEXT", [len(given["texts"])], "BYTES")
            tensor.set_data_from_numpy(np.array(given["texts"], dtype=object), binary_data=binary)
            sent = request(given["model"], tensor, binary_data=binary)
            found["answers"].append(shown(await client.infer(url, sent, given["model"], headers=headers)))
        try:
            await client.infer(url, sent, MISSING, headers=headers)
        except httpx.HTTPStatusError as error:
            found["error"] = str(error)
    return found


async def over_grpc(given: dict[str, Any]) -> dict[str, Any]:
    headers = (("authorization", f"Bearer {given['key']}"),)
    async with InferenceGRPCClient(given["grpc"]) as client:
        found: dict[str, Any] = {
            "live": await client.is_server_live(),
            "ready": await client.is_server_ready(),
            "models": [await client.is_model_ready(given["model"], headers=headers)],
            "answers": [],
        }
        for data in (given["texts"], np.array(given["texts"], dtype=object)):
            tensor = InferInput("TEXT", [len(given["texts"])], "BYTES", data=data)
            sent = request(given["model"], tensor)
            found["answers"].append(shown(await client.infer(sent, headers=headers)))
        try:
            await client.infer(request(MISSING, tensor), headers=headers)
        except grpc.RpcError as error:
            found["error"] = f"{error.code().name} {error.details()}"
    return found


def request(model: str, tensor: InferInput, **parameters: Any) -> InferRequest:
    outputs = [RequestedOutput(name, dict(parameters)) for name in ("LABEL", "SCORE")]
    return InferRequest(model, [tensor], "call-8", request_outputs=outputs)


def shown(answer: Any) -> dict[str, Any]:
    label, score = (output.as_numpy().tolist() for output in answer.outputs)
    labels = [each.decode() if isinstance(each, bytes) else each for each in label]
    return {"id": answer.id, "model": answer.model_name, "labels": labels, "scores": score}


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    print(json.dumps([asyncio.run(over_http(asked)), asyncio.run(over_grpc(asked))]))
