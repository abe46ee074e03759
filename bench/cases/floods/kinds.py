"""The kinds of flood: the requests that each flooding client repeats."""

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
"""Bytes of a body far over the server's limit."""
FULL_BYTES = 7 << 20
"""Bytes of a body over the limit, but under that of earlier releases."""
MOST_BYTES = 39 * TEXT_BYTES
"""Bytes of a body just under the limit."""
SENTENCE = "The committee could not agree on what the second report had said about prices and wages."


@dataclass(frozen=True)
class Request:
    """A request that can be sent repeatedly; its `body` is built once."""

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
    """A kind of flood: `clients` connections that send `make()` again as soon as it is answered.

    `unfinished`: each connection sends all but the body's last byte, and holds. `half_sent`: each sends half
    of a header, and holds. `descriptors`: the limit of open files that the server runs with.
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


def _long(text: str, size: int) -> list[str]:
    """Return texts of the greatest allowed size, `size` bytes in all."""
    one = (text * (TEXT_BYTES // len(text.encode()) + 1)).encode()[: TEXT_BYTES - 4].decode(errors="ignore")
    return [one] * (size // TEXT_BYTES)


def _objects(size: int) -> Request:
    return Request(INFER, b'{"inputs": [' + b",".join([b'{"text":"a"}'] * (size // 13)) + b"]}")


def _bomb() -> Request:
    squeeze = zlib.compressobj(9, zlib.DEFLATED, 31)
    zeros = bytes(1 << 20)
    packed = b"".join(squeeze.compress(zeros) for _ in range(1024)) + squeeze.flush()
    return Request(INFER, packed, {"Content-Encoding": "gzip"}, keyed=False)


def _texts(text: str, size: int) -> Request:
    body = json.dumps({"inputs": _long(text, size)}, ensure_ascii=False)
    return Request(INFER, body.encode())


SPACES, WORD, CHINESE = " " * 99 + "a", "antidisestablishment", "语言模型服务器为每个租户提供自己的模型"


FLOODS: dict[str, Flood] = {
    "short": Flood("calls of 32 short texts", lambda: _infer(short_texts(32)), clients=8),
    "long": Flood("calls of 16 texts of 100 kB", lambda: _texts(SENTENCE + " ", 16 * TEXT_BYTES)),
    "many": Flood("calls of 1,024 short texts", lambda: _infer(short_texts(1024))),
    "exact": Flood("calls of 32 short texts, exact", lambda: _infer(short_texts(32), exact=True)),
    "spaces": Flood("30 MB of spaces", lambda: _texts(SPACES, BODY_BYTES)),
    "word": Flood("30 MB of one word", lambda: _texts(WORD, BODY_BYTES)),
    "cjk": Flood("30 MB of Chinese", lambda: _texts(CHINESE, BODY_BYTES)),
    "objects": Flood("30 MB of small objects", lambda: _objects(BODY_BYTES)),
    "full_spaces": Flood("7 MB of spaces", lambda: _texts(SPACES, FULL_BYTES)),
    "full_word": Flood("7 MB of one word", lambda: _texts(WORD, FULL_BYTES)),
    "full_cjk": Flood("7 MB of Chinese", lambda: _texts(CHINESE, FULL_BYTES)),
    "full_objects": Flood("7 MB of small objects", lambda: _objects(FULL_BYTES)),
    "most_spaces": Flood("3.9 MB of spaces", lambda: _texts(SPACES, MOST_BYTES)),
    "most_word": Flood("3.9 MB of one word", lambda: _texts(WORD, MOST_BYTES)),
    "most_cjk": Flood("3.9 MB of Chinese", lambda: _texts(CHINESE, MOST_BYTES)),
    "most_objects": Flood("3.9 MB of small objects", lambda: _objects(MOST_BYTES)),
    "unfinished": Flood(
        "40 bodies of 30 MB without their end", lambda: _texts("a ", BODY_BYTES), 40, unfinished=True
    ),
    "full_unfinished": Flood(
        "40 bodies of 7 MB without their end", lambda: _texts("a ", FULL_BYTES), 40, unfinished=True
    ),
    "most_unfinished": Flood(
        "40 bodies of 3.9 MB without their end", lambda: _texts("a ", MOST_BYTES), 40, unfinished=True
    ),
    "bombs": Flood("1 MB of gzip that expands to 1 GiB, no key", _bomb),
    "headers": Flood(
        "400 headers sent half, at 300 descriptors",
        lambda: Request("/healthz"),
        400,
        half_sent=True,
        descriptors=300,
    ),
    "openapi": Flood("/openapi.json, no key", lambda: Request("/openapi.json", keyed=False)),
}
