"""Sound bodies of every reader of the server, from which `test_fuzz_bodies` makes unsound ones."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import zstandard

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
READERS = (
    Reader("infer", "/infer/acme.m", INFER),
    Reader("infer mixed", "/infer", MIXED),
    Reader("gzip", "/infer/acme.m", INFER, _packed("gzip"), gzip.compress),
    Reader("deflate", "/infer/acme.m", INFER, _packed("deflate"), zlib.compress),
    Reader("zstd", "/infer/acme.m", INFER, _packed("zstd"), zstandard.compress),
    Reader("multipart", "/manage/models", FORMS, MULTIPART),
    Reader("spec", "/manage/models", _json({**SPEC, "data": {"path": "rows.jsonl"}})),
    Reader(
        "feedback", "/manage/models/acme.m/feedback", _json({"labels": [{"id": "x", "label": "finance"}]})
    ),
)
