"""The kinds of flood: the requests that each flooding client repeats."""

from __future__ import annotations

import functools
import json
import random
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

INFER = "/infer/t00001.m"
"""The model of the tenant that floods."""
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
class FloodRequest:
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
    make: Callable[[], FloodRequest]
    clients: int = 4
    unfinished: bool = False
    half_sent: bool = False
    descriptors: int | None = None


def _infer(inputs: list[str], **parameters: object) -> FloodRequest:
    body = json.dumps({"inputs": inputs, "parameters": parameters} if parameters else {"inputs": inputs})
    return FloodRequest(INFER, body.encode())


def short_texts(count: int) -> list[str]:
    words = SENTENCE.split()
    draw = random.Random(7)
    return [" ".join(draw.choices(words, k=12)) for _ in range(count)]


def _objects(size: int) -> FloodRequest:
    return FloodRequest(INFER, b'{"inputs": [' + b",".join([b'{"text":"a"}'] * (size // 13)) + b"]}")


def _bomb() -> FloodRequest:
    squeeze = zlib.compressobj(9, zlib.DEFLATED, 31)
    zeros = bytes(1 << 20)
    packed = b"".join(squeeze.compress(zeros) for _ in range(1024)) + squeeze.flush()
    return FloodRequest(INFER, packed, {"Content-Encoding": "gzip"}, keyed=False)


def _texts(text: str, size: int) -> FloodRequest:
    """Repeat `text` up to texts of the greatest allowed size, `size` bytes in all."""
    one = (text * (TEXT_BYTES // len(text.encode()) + 1)).encode()[: TEXT_BYTES - 4].decode(errors="ignore")
    body = json.dumps({"inputs": [one] * (size // TEXT_BYTES)}, ensure_ascii=False)
    return FloodRequest(INFER, body.encode())


def _large(size: int) -> dict[str, tuple[str, Callable[[], FloodRequest]]]:
    """Return the floods of large bodies of one size: what their bodies hold, by name."""
    texts = {
        "spaces": ("spaces", " " * 99 + "a"),
        "word": ("one word", "antidisestablishment"),
        "cjk": ("Chinese", "语言模型服务器为每个租户提供自己的模型"),
    }
    found = {name: (what, functools.partial(_texts, text, size)) for name, (what, text) in texts.items()}
    return {**found, "objects": ("small objects", functools.partial(_objects, size))}


SIZES = {"": (BODY_BYTES, "30 MB"), "full_": (FULL_BYTES, "7 MB"), "most_": (MOST_BYTES, "3.9 MB")}

FLOODS: dict[str, Flood] = {
    "short": Flood("calls of 32 short texts", lambda: _infer(short_texts(32)), clients=8),
    "long": Flood("calls of 16 texts of 100 kB", lambda: _texts(SENTENCE + " ", 16 * TEXT_BYTES)),
    "many": Flood("calls of 1,024 short texts", lambda: _infer(short_texts(1024))),
    "exact": Flood("calls of 32 short texts, exact", lambda: _infer(short_texts(32), exact=True)),
    **{
        f"{prefix}{kind}": Flood(f"{said} of {what}", make)
        for prefix, (size, said) in SIZES.items()
        for kind, (what, make) in _large(size).items()
    },
    **{
        f"{prefix}unfinished": Flood(
            f"40 bodies of {said} without their end",
            functools.partial(_texts, "a ", size),
            40,
            unfinished=True,
        )
        for prefix, (size, said) in SIZES.items()
    },
    "bombs": Flood("1 MB of gzip that expands to 1 GiB, no key", _bomb),
    "headers": Flood(
        "400 headers sent half, at 300 descriptors",
        lambda: FloodRequest("/healthz"),
        400,
        half_sent=True,
        descriptors=300,
    ),
    "openapi": Flood("/openapi.json, no key", lambda: FloodRequest("/openapi.json", keyed=False)),
}
