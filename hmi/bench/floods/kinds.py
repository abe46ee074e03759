"""The floods: what each client of one sends, over and over."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

INFER = "/infer/flood.mood"
TEXT_BYTES = 100_000
"""The server's default `max_text_bytes`."""
BODY_BYTES = 30 << 20
SENTENCE = "The committee could not agree on what the second report had said about prices and wages."


@dataclass(frozen=True)
class Request:
    """One request that can be sent again and again; `body` is made once."""

    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    keyed: bool = True

    def head(self, key: str) -> bytes:
        lines = [f"{'POST' if self.body else 'GET'} {self.path} HTTP/1.1", "Host: 127.0.0.1"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        lines += [f"Authorization: Bearer {key}"] * self.keyed
        lines += ["Content-Type: application/json", f"Content-Length: {len(self.body)}"] * bool(self.body)
        return "\r\n".join([*lines, "", ""]).encode()


@dataclass(frozen=True)
class Flood:
    """`clients` connections that send `make()` again as soon as it is answered.

    `unfinished`: each sends all but the body's last byte, and holds. `half_sent`: each sends half of a header, and
    holds. `descriptors`: the limit of open files under which the server runs.
    """

    what: str
    make: Callable[[], Request]
    clients: int = 4
    unfinished: bool = False
    half_sent: bool = False
    descriptors: int | None = None


def _infer(inputs: list[str], **parameters: object) -> Request:
    body = json.dumps({"inputs": inputs, "parameters": parameters} if parameters else {"inputs": inputs})
    return Request(INFER, body.encode())


def short_texts(count: int) -> list[str]:
    words = SENTENCE.split()
    draw = random.Random(7)
    return [" ".join(draw.choices(words, k=12)) for _ in range(count)]


def _long(text: str) -> list[str]:
    """Texts of the most bytes allowed, together as long as a body may be."""
    one = (text * (TEXT_BYTES // len(text.encode()) + 1)).encode()[: TEXT_BYTES - 4].decode(errors="ignore")
    return [one] * (BODY_BYTES // TEXT_BYTES)


def _objects() -> Request:
    return Request(INFER, b'{"inputs": [' + b",".join([b'{"text":"a"}'] * (BODY_BYTES // 13)) + b"]}")


def _bomb() -> Request:
    squeeze = zlib.compressobj(9, zlib.DEFLATED, 31)
    zeros = bytes(1 << 20)
    packed = b"".join(squeeze.compress(zeros) for _ in range(1024)) + squeeze.flush()
    return Request(INFER, packed, {"Content-Encoding": "gzip"}, keyed=False)


def _raw(text: str) -> list[str]:
    return [json.dumps(t, ensure_ascii=False) for t in _long(text)]


def _cjk() -> Request:
    body = '{"inputs": [' + ",".join(_raw("语言模型服务器为每个租户提供自己的模型")) + "]}"
    return Request(INFER, body.encode())


FLOODS: dict[str, Flood] = {
    "short": Flood("calls of 32 short texts", lambda: _infer(short_texts(32)), clients=8),
    "long": Flood("calls of 16 texts of 100 kB", lambda: _infer(_long(SENTENCE + " ")[:16])),
    "many": Flood("calls of 1,024 short texts", lambda: _infer(short_texts(1024))),
    "exact": Flood("calls of 32 short texts, exact", lambda: _infer(short_texts(32), exact=True)),
    "spaces": Flood("30 MB of texts of spaces and a word", lambda: _infer(_long(" " * 99 + "a"))),
    "word": Flood("30 MB of texts of one word", lambda: _infer(_long("antidisestablishment"))),
    "cjk": Flood("30 MB of Chinese", _cjk),
    "objects": Flood("30 MB of two million small objects", _objects),
    "unfinished": Flood("forty bodies of 30 MB without their end", lambda: _infer(_long("a ")), 40, unfinished=True),
    "bombs": Flood("1 MB of gzip that expands to 1 GiB, no key", _bomb),
    "headers": Flood(
        "400 headers sent half, at 300 descriptors", lambda: Request("/healthz"), 400, half_sent=True, descriptors=300
    ),
    "openapi": Flood("/openapi.json, no key", lambda: Request("/openapi.json", keyed=False)),
}
