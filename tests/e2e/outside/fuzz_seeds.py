"""Sound bodies of every reader of the server, from which `test_fuzz_bodies` makes unsound ones."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import zstandard

from hmi.api.rpc.messages import MESSAGES as RPC

BOUNDARY = "frontier"


@dataclass(frozen=True)
class Reader:
    """A call whose body is fuzzed."""

    name: str
    path: str
    seeds: tuple[bytes, ...]
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})
    pack: Callable[[bytes], bytes] = bytes
    """Compresses a seed, sound or not."""
    fraction: float = 1.0
    """The fraction of the inputs that it gets. Calls that read plain JSON differ in their schema alone."""


def _json(*bodies: Any) -> tuple[bytes, ...]:
    return tuple(json.dumps(body, ensure_ascii=False).encode() for body in bodies)


def _packed(encoding: str) -> dict[str, str]:
    return {"Content-Type": "application/json", "Content-Encoding": encoding}


def _parts(*parts: tuple[str, str, bytes]) -> bytes:
    """A multipart body of parts, each with its headers' lines beyond the name."""
    out = b""
    for name, more, data in parts:
        disposition = f'Content-Disposition: form-data; name="{name}"; filename="{name}"'
        out += f"--{BOUNDARY}\r\n{disposition}\r\n{more}\r\n".encode() + data + b"\r\n"
    return out + f"--{BOUNDARY}--\r\n".encode()


INFER = _json(
    {"inputs": "the market falls"},
    {"inputs": ["a", "gene é🙂"], "parameters": {"return": ["scores", "provenance"], "priority": "low"}},
    {"inputs": [{"text": "a", "text_pair": "b"}], "parameters": {"deadline_ms": 60000, "utility": 0.5}},
    {"inputs": [{"tokens": ["a", "gene"]}], "parameters": {"exact": True, "calibrated": True}},
)
MIXED = _json([{"model": "acme.m", "inputs": ["a", "b"]}, {"model": "acme.m", "inputs": "c"}])
# No domain has this name, so that the call ends after its body was read, and no job begins.
SPEC = {"model": "acme.new", "domain": "tiny/none", "task": "classification", "options": {"epochs": 1}}
ROWS = b'{"text": "a gene", "label": "x"}\n{"text": "a stock", "label": "y"}\n'
JSON_PART = "Content-Type: application/json\r\n"
FORMS = (
    _parts(("spec", JSON_PART, _json(SPEC)[0]), ("data", "", ROWS)),
    _parts(("spec", JSON_PART, _json(SPEC)[0]), ("data", "Content-Encoding: gzip\r\n", gzip.compress(ROWS))),
    _parts(("data", "", b"text,label\na,b\n"), ("spec", JSON_PART, _json(SPEC)[0]), ("dev", "", ROWS)),
)
MULTIPART = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
OIP = _json(
    {"inputs": [{"name": "TEXT", "shape": [2], "datatype": "BYTES", "data": ["a", "b"]}], "id": "1"},
    {
        "inputs": [{"name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": [["a gene"]]}],
        "outputs": [{"name": "SCORES", "parameters": {"binary_data": True}}],
        "parameters": {"binary_data_output": True, "deadline_ms": 60000},
    },
)
_TENSOR = {"name": "TEXT", "shape": [2], "datatype": "BYTES", "parameters": {"binary_data_size": 15}}
_HEAD = _json({"inputs": [_TENSOR]})[0]
BINARY = _HEAD + b"\x06\0\0\0a gene\x01\0\0\0b"
CONLL = b"cell B-bio\nthe O\n\ngene B-bio\nmarket O\n"
ROWS_FILES = (
    ROWS,
    b'\xef\xbb\xbftext;label\n"a; b";x\nc;y\n',
    CONLL,
    gzip.compress(ROWS),
    "text\tlabel\na\tb\n".encode("utf-16"),
)
CHECKED = tuple(
    _parts(("spec", JSON_PART, b'{"task": "classification"}'), ("data", "", rows)) for rows in ROWS_FILES
)
UPLOADED = tuple(
    _parts(("purpose", "", b"fine-tune"), ("file", "Content-Type: application/jsonl\r\n", rows))
    for rows in ROWS_FILES
)
EMBED = _json(
    {"model": "acme.m", "input": ["a", "b"], "encoding_format": "base64"},
    {"model": "acme.m", "input": "a", "dimensions": 8, "user": "x"},
)
TUNE = _json(
    {"training_file": "file-0", "model": "tiny", "suffix": "new", "hyperparameters": {"n_epochs": 1}}
)
TEI = _json(
    {"inputs": ["a", "b"], "truncate": True}, {"inputs": [["a", "b"], ["c", "d"]], "raw_scores": True}
)
HUB = _json({"inputs": "a gene", "parameters": {"top_k": 2, "function_to_apply": "softmax"}})
READERS = (
    Reader("infer", "/infer/acme.m", INFER),
    Reader("infer mixed", "/infer", MIXED, fraction=0.1),
    Reader("gzip", "/infer/acme.m", INFER, _packed("gzip"), gzip.compress),
    Reader("deflate", "/infer/acme.m", INFER, _packed("deflate"), zlib.compress),
    Reader("zstd", "/infer/acme.m", INFER, _packed("zstd"), zstandard.compress),
    Reader("multipart", "/manage/models", FORMS, MULTIPART),
    Reader("spec", "/manage/models", _json({**SPEC, "data": {"path": "rows.jsonl"}}), fraction=0.1),
    Reader(
        "feedback",
        "/manage/models/acme.m/feedback",
        _json({"labels": [{"id": "x", "label": "finance"}]}),
        fraction=0.1,
    ),
    Reader("oip", "/v2/models/acme.m/infer", OIP, fraction=0.1),
    Reader(
        "oip binary",
        "/v2/models/acme.m/infer",
        (BINARY, BINARY[:-3], _HEAD),
        {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(_HEAD))},
    ),
    Reader("openai embeddings", "/v1/embeddings", EMBED, fraction=0.1),
    Reader("openai jobs", "/v1/fine_tuning/jobs", TUNE, fraction=0.1),
    Reader("openai files", "/v1/files", UPLOADED, MULTIPART),
    Reader(
        "tei embed", "/embed", TEI, {"Content-Type": "application/json", "X-Model": "acme.m"}, fraction=0.1
    ),
    Reader(
        "tei predict",
        "/predict",
        TEI,
        {"Content-Type": "application/json", "X-Model": "acme.m"},
        fraction=0.1,
    ),
    Reader("hub", "/hf/acme.m", HUB, fraction=0.1),
    Reader("rows", "/manage/check", CHECKED, MULTIPART),
)


def _message(texts: list[bytes], *, raw: bool) -> bytes:
    """A request of gRPC's ModelInfer for acme.m, with its texts in the tensor's contents or beside it."""
    request = RPC["ModelInferRequest"](model_name="acme.m", id="1")
    tensor = request.inputs.add(name="TEXT", datatype="BYTES", shape=[len(texts)])
    if raw:
        packed = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
        request.raw_input_contents.append(packed)
    else:
        tensor.contents.bytes_contents.extend(texts)
    return bytes(request.SerializeToString())


MESSAGES = (_message([b"a gene", b"b"], raw=True), _message([b"a stock"], raw=False))
"""Sound messages of gRPC."""
