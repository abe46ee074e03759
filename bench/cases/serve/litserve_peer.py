"""LitServe over ONNX Runtime, as a process of its own: classifies texts with the full encoder.

`python litserve_peer.py --model full-int8.onnx --tokenizer tokenizer.json --port 9001`. It needs litserve,
onnxruntime and tokenizers, and nothing of HMI. `POST /predict {"model", "inputs": [text, …]}` answers
`{"outputs": [{"label", "score"}, …]}`.

A `{tenant}` in --model makes it serve a dedicated model for each tenant: --resident of them stay in memory,
and the one that was used longest ago gives way.
"""

from __future__ import annotations

import argparse
from collections import OrderedDict
from typing import Any

import litserve  # type: ignore[import-not-found]
import numpy as np
import onnxruntime  # type: ignore[import-not-found]
from tokenizers import Tokenizer

CHUNK = 4
"""Texts of a run, if they are of unequal lengths: padding then slows it little."""
MOST_TOKENS = 512

Call = tuple[str, list[str]]


class Classifier(litserve.LitAPI):  # type: ignore[misc]  # litserve is not typed
    """A dense layer and a softmax over [CLS], after the encoder. One compute thread."""

    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__(max_batch_size=given.calls, batch_timeout=given.wait_ms / 1e3)
        self._given = given

    def setup(self, device: str) -> None:
        self._tokenizer = Tokenizer.from_file(self._given.tokenizer)
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(MOST_TOKENS)
        self._sessions: OrderedDict[str, Any] = OrderedDict()
        if "{tenant}" not in self._given.model:
            self._session("")
        self._heads: dict[int, Any] = {}

    # LitServe parses the body by the annotation of `request`: fastest without one.
    def decode_request(self, request) -> Call:  # type: ignore[no-untyped-def]
        return request["model"], request["inputs"]

    def batch(self, inputs: list[Call]) -> list[Call]:
        return inputs

    def unbatch(self, output: list[Any]) -> list[Any]:
        return output

    def predict(self, x: Call | list[Call]) -> Any:
        """Answer one call, or a batch of calls: the texts of equal models run together."""
        calls = x if isinstance(x, list) else [x]
        answers: list[list[Any]] = [[None] * len(texts) for _, texts in calls]
        places: dict[str, list[tuple[int, int]]] = {}
        dedicated = "{tenant}" in self._given.model
        for i, (tenant, texts) in enumerate(calls):
            places.setdefault(tenant if dedicated else "", []).extend((i, j) for j in range(len(texts)))
        for tenant, at in places.items():
            texts = [calls[i][1][j] for i, j in at]
            for (i, j), answer in zip(at, self._answers(self._session(tenant), texts), strict=True):
                answers[i][j] = answer
        return answers if isinstance(x, list) else answers[0]

    def encode_response(self, output: list[Any]) -> dict[str, Any]:
        return {"outputs": output}

    def _answers(self, session: Any, texts: list[str]) -> list[dict[str, Any]]:
        ids = [encoded.ids for encoded in self._tokenizer.encode_batch(texts)]
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        equal = len(ids[order[0]]) == len(ids[order[-1]])
        size = self._given.texts if equal else CHUNK
        found: list[dict[str, Any]] = [{}] * len(ids)
        for start in range(0, len(order), size):
            at = order[start : start + size]
            for i, scores in zip(at, self._scores(session, [ids[i] for i in at]), strict=True):
                best = int(scores.argmax())
                found[i] = {"label": str(best), "score": float(scores[best])}
        return found

    def _scores(self, session: Any, chunk: list[list[int]]) -> Any:
        tokens = np.zeros((len(chunk), max(map(len, chunk))), np.int64)
        mask = np.zeros_like(tokens)
        for i, text in enumerate(chunk):
            tokens[i, : len(text)], mask[i, : len(text)] = text, 1
        names = [given.name for given in session.get_inputs()]
        states = session.run(None, dict(zip(names, (tokens, mask), strict=True)))[0][:, 0]
        dim = states.shape[1]
        if dim not in self._heads:
            self._heads[dim] = np.random.default_rng(7).standard_normal((dim, self._given.labels)) / dim
        logits = states @ self._heads[dim]
        powers = np.exp(logits - logits.max(1, keepdims=True))
        return powers / powers.sum(1, keepdims=True)

    def _session(self, tenant: str) -> Any:
        session = self._sessions.get(tenant)
        if session is None:
            while len(self._sessions) >= self._given.resident:
                self._sessions.popitem(last=False)
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = options.inter_op_num_threads = 1
            options.log_severity_level = 3
            path = self._given.model.replace("{tenant}", tenant)
            session = self._sessions[tenant] = onnxruntime.InferenceSession(path, options)
        self._sessions.move_to_end(tenant)
        return session


def main() -> None:
    parser = argparse.ArgumentParser(description="LitServe over ONNX Runtime")
    parser.add_argument("--model", required=True, help="ONNX file: (ids, mask) -> states")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--labels", type=int, default=2)
    parser.add_argument("--calls", type=int, default=1, help="calls that may run as one batch")
    parser.add_argument("--texts", type=int, default=16, help="texts of a run, if of equal length")
    parser.add_argument("--wait-ms", type=float, default=0.0, help="time that a batch waits for calls")
    parser.add_argument("--resident", type=int, default=1, help="models in memory")
    given = parser.parse_args()
    server = litserve.LitServer(Classifier(given), accelerator="cpu", workers_per_device=1, timeout=False)
    server.run(host="127.0.0.1", port=given.port, log_level="warning", generate_client_file=False)


if __name__ == "__main__":
    main()
