"""LitServe over ONNX Runtime, as a process of its own: classifies texts with the full encoder.

`python litserve_peer.py --model full-int8.onnx --tokenizer tokenizer.json --port 9001`. It needs litserve,
onnxruntime and tokenizers, and nothing of HMI. `POST /predict {"inputs": [text, …]}` answers
`{"outputs": [{"label", "score"}, …]}`.
"""

from __future__ import annotations

import argparse
from typing import Any

import litserve  # type: ignore[import-not-found]
import numpy as np
import onnxruntime  # type: ignore[import-not-found]
from tokenizers import Tokenizer

CHUNK = 4
"""Texts of a run, if they are of unequal lengths: padding then slows it little."""
MOST_TOKENS = 512

Call = list[str]
"""The texts of a call."""


class Classifier(litserve.LitAPI):  # type: ignore[misc]  # litserve is not typed
    """A dense layer and a softmax over [CLS], after the encoder. One compute thread."""

    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__(max_batch_size=given.calls, batch_timeout=given.wait_ms / 1e3)
        self._given = given

    def setup(self, device: str) -> None:
        self._tokenizer = Tokenizer.from_file(self._given.tokenizer)
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(MOST_TOKENS)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(self._given.model, options)
        self._heads: dict[int, Any] = {}

    # LitServe parses the body by the annotation of `request`: fastest without one.
    def decode_request(self, request) -> Call:  # type: ignore[no-untyped-def]
        texts: Call = request["inputs"]
        return texts

    def batch(self, inputs: list[Call]) -> list[Call]:
        return inputs

    def unbatch(self, output: list[Any]) -> list[Any]:
        return output

    def predict(self, x: Any) -> Any:
        """Answer one call, or a batch of calls, whose texts run together."""
        if not x or isinstance(x[0], str):
            return self._answers(x)
        answers = iter(self._answers([text for call in x for text in call]))
        return [[next(answers) for _ in call] for call in x]

    def encode_response(self, output: list[Any]) -> dict[str, Any]:
        return {"outputs": output}

    def _answers(self, texts: Any) -> list[dict[str, Any]]:
        ids = [encoded.ids for encoded in self._tokenizer.encode_batch(texts)]
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        equal = len(ids[order[0]]) == len(ids[order[-1]])
        size = self._given.texts if equal else CHUNK
        found: list[dict[str, Any]] = [{}] * len(ids)
        for start in range(0, len(order), size):
            at = order[start : start + size]
            for i, scores in zip(at, self._scores([ids[i] for i in at]), strict=True):
                best = int(scores.argmax())
                found[i] = {"label": str(best), "score": float(scores[best])}
        return found

    def _scores(self, chunk: list[list[int]]) -> Any:
        tokens = np.zeros((len(chunk), max(map(len, chunk))), np.int64)
        mask = np.zeros_like(tokens)
        for i, text in enumerate(chunk):
            tokens[i, : len(text)], mask[i, : len(text)] = text, 1
        names = [given.name for given in self._session.get_inputs()]
        states = self._session.run(None, dict(zip(names, (tokens, mask), strict=True)))[0][:, 0]
        dim = states.shape[1]
        if dim not in self._heads:
            self._heads[dim] = np.random.default_rng(7).standard_normal((dim, self._given.labels)) / dim
        logits = states @ self._heads[dim]
        powers = np.exp(logits - logits.max(1, keepdims=True))
        return powers / powers.sum(1, keepdims=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="LitServe over ONNX Runtime")
    parser.add_argument("--model", required=True, help="ONNX file: (ids, mask) -> states")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--labels", type=int, default=2)
    parser.add_argument("--calls", type=int, default=1, help="calls that may run as one batch")
    parser.add_argument("--texts", type=int, default=16, help="texts of a run, if of equal length")
    parser.add_argument("--wait-ms", type=float, default=0.0, help="time that a batch waits for calls")
    given = parser.parse_args()
    server = litserve.LitServer(Classifier(given), accelerator="cpu", workers_per_device=1, timeout=False)
    server.run(host="127.0.0.1", port=given.port, log_level="warning", generate_client_file=False)


if __name__ == "__main__":
    main()
