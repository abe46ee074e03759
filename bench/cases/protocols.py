"""Measures what the Open Inference Protocol costs beside POST /infer, on a running server.

Each form of a request is sent in turn over a connection that stays open, so that the machine's other work
meets all forms alike. Bodies are made beforehand, and answers are not parsed: the clients cost the same.

    python -m bench.cases.protocols URL GRPC MODEL KEY
"""

from __future__ import annotations

import http.client
import json
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from hmi.api.protocols.oip.tensors import packed_texts
from hmi.errors import HmiError

TEXT = "oil prices rose sharply after the cartel agreed to cut its output"
ROUNDS = 200
COUNTS = (1, 64)
NATIVE = "POST /infer"
Send = Callable[[], object]


def measure(url: str, address: str, model: str, key: str, count: int, rounds: int) -> dict[str, float]:
    """Return the median time of a request of `count` texts in ms, by form, and for all but the native form
    the median of its time less that of the native request before it.

    Raises HmiError if an answer is not a success.
    """
    texts = [f"{TEXT} {i}" for i in range(count)]
    forms = _http_forms(url, model, key, texts)
    forms["gRPC"] = _grpc_form(address, model, key, texts)
    times: dict[str, list[float]] = {name: [] for name in forms}
    for at in range(rounds + 5):
        for name, send in forms.items():
            began = time.perf_counter()
            send()
            if at >= 5:  # the first requests warm the connections
                times[name].append((time.perf_counter() - began) * 1e3)
    found = {name: median(taken) for name, taken in times.items()}
    for name, taken in times.items():
        if name != NATIVE:
            pairs = zip(taken, times[NATIVE], strict=True)
            found[f"{name} less {NATIVE}"] = median(mine - native for mine, native in pairs)
    return found


def _http_forms(url: str, model: str, key: str, texts: list[str]) -> dict[str, Send]:
    tensor: dict[str, Any] = {"name": "TEXT", "shape": [len(texts)], "datatype": "BYTES"}
    outputs = [{"name": "LABEL"}, {"name": "SCORE"}]
    packed = packed_texts(texts)
    announced = {**tensor, "parameters": {"binary_data_size": len(packed)}}
    options = {"binary_data_output": True}
    head = json.dumps({"inputs": [announced], "outputs": outputs, "parameters": options}).encode()
    path = f"/v2/models/{model}/infer"
    in_json = json.dumps({"inputs": [{**tensor, "data": texts}], "outputs": outputs}).encode()
    length = {"Inference-Header-Content-Length": str(len(head))}
    return {
        NATIVE: _post(url, f"/infer/{model}", key, json.dumps({"inputs": texts}).encode(), {}),
        "HTTP JSON": _post(url, path, key, in_json, {}),
        "HTTP binary": _post(url, path, key, head + packed, length),
    }


def _post(url: str, path: str, key: str, body: bytes, more: dict[str, str]) -> Send:
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    media = "application/octet-stream" if more else "application/json"
    headers = {"Authorization": f"Bearer {key}", "Content-Type": media, **more}

    def send() -> None:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        read = answer.read()
        if answer.status != 200:
            raise HmiError(f"{path} answered {answer.status}: {read[:300]!r}")

    return send


def _grpc_form(address: str, model: str, key: str, texts: list[str]) -> Send:
    import grpc

    from hmi.api.rpc.messages import MESSAGES

    request = MESSAGES["ModelInferRequest"](model_name=model, raw_input_contents=[packed_texts(texts)])
    request.inputs.add(name="TEXT", datatype="BYTES", shape=[len(texts)])
    for name in ("LABEL", "SCORE"):
        request.outputs.add(name=name)
    body, metadata = request.SerializeToString(), (("authorization", f"Bearer {key}"),)
    call = grpc.insecure_channel(address).unary_unary("/inference.GRPCInferenceService/ModelInfer")
    return lambda: call(body, metadata=metadata)


def main(arguments: list[str]) -> None:
    """Print the figures for each number of texts, in ms."""
    url, address, model, key = arguments
    for count in COUNTS:
        print(f"{count} texts")
        for name, ms in measure(url, address, model, key, count, ROUNDS).items():
            print(f"  {name:32} {ms:8.3f} ms")


if __name__ == "__main__":
    main(sys.argv[1:])
