"""Hostile clients of a server: each flood is a few lines of raw HTTP, sent until it is stopped.

`python -m tests.hmi.labs.flood_lab NAME PORT SECONDS [KEY]` runs one of FLOODS from a process of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import zlib
from collections.abc import Awaitable, Callable

import zstandard

MIB = 1 << 20
Flood = Callable[[int, str | None], Awaitable[None]]


def head(path: str, key: str | None, *lines: str, method: str = "POST") -> bytes:
    """The complete head of a request; `lines` are further headers."""
    given = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *lines]
    if key:
        given.append(f"Authorization: Bearer {key}")
    return ("\r\n".join(given) + "\r\n\r\n").encode()


def post(path: str, key: str | None, body: bytes, *lines: str, declared: int | None = None) -> bytes:
    """A JSON request; unfinished if `declared`, its Content-Length, exceeds the body."""
    size = f"Content-Length: {len(body) if declared is None else declared}"
    return head(path, key, "Content-Type: application/json", size, *lines) + body


def bomb(encoding: str, expanded: int) -> bytes:
    """`expanded` zero bytes, compressed: to a thousandth by gzip or deflate, further by zstd."""
    zeros = bytes(MIB)
    if encoding == "zstd":
        packer = zstandard.ZstdCompressor().compressobj()
        return b"".join(packer.compress(zeros) for _ in range(expanded // MIB)) + packer.flush()
    deflate = zlib.compressobj(9, zlib.DEFLATED, 31 if encoding == "gzip" else 15)
    return b"".join(deflate.compress(zeros) for _ in range(expanded // MIB)) + deflate.flush()


def objects(size: int, item: bytes = b"{}") -> bytes:
    """An infer body of about `size` bytes whose inputs are many small objects."""
    return b'{"inputs":[' + (item + b",") * (size // (len(item) + 1)) + item + b"]}"


async def send(port: int, data: bytes, hold_s: float = 0.0) -> bytes:
    """Send on a new connection; the first bytes of the answer, or b"" after a minute without any."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        with contextlib.suppress(ConnectionError):
            writer.write(data)
            await writer.drain()
        await asyncio.sleep(hold_s)
        with contextlib.suppress(ConnectionError, TimeoutError):
            return await asyncio.wait_for(reader.read(65536), 60)
        return b""
    finally:
        writer.transport.abort()


async def again_and_again(port: int, data: bytes, clients: int) -> None:
    async def client() -> None:
        while True:
            with contextlib.suppress(OSError):
                await send(port, data)
            await asyncio.sleep(0.01)

    await asyncio.gather(*(client() for _ in range(clients)))


async def held(port: int, data: bytes, clients: int, drip: bytes = b"", every_s: float = 1.0) -> None:
    """Connections that send `data`, then `drip` from time to time, and never finish."""

    async def client() -> None:
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(data)
                while not writer.transport.is_closing():
                    await asyncio.sleep(every_s)
                    writer.write(drip)
            await asyncio.sleep(0.05)

    await asyncio.gather(*(client() for _ in range(clients)))


def _bombs(encoding: str, keyed: bool) -> Flood:
    async def flood(port: int, key: str | None) -> None:
        packed = bomb(encoding, 1024 * MIB)
        line = f"Content-Encoding: {encoding}"
        await again_and_again(port, post("/infer/loud.m", key if keyed else "hmi_wrong", packed, line), 4)

    return flood


def _bodies(body: Callable[[], bytes], clients: int = 2) -> Flood:
    async def flood(port: int, key: str | None) -> None:
        await again_and_again(port, post("/infer/loud.m", key, body()), clients)

    return flood


async def _unfinished(port: int, key: str | None) -> None:
    await held(port, post("/infer/loud.m", key, b" " * (30 * MIB - 1), declared=30 * MIB), 40)


async def _unfinished_small(port: int, key: str | None) -> None:
    await held(port, post("/infer/loud.m", key, b" " * (4 * MIB - 1), declared=4 * MIB), 40)


async def _half_heads(port: int, key: str | None) -> None:
    await held(port, head("/infer/loud.m", key)[:-4], 400)


async def _slow_heads(port: int, key: str | None) -> None:
    await held(port, head("/infer/loud.m", key)[:-2], 400, drip=b"X-A: b\r\n", every_s=5)


async def _slow_bodies(port: int, key: str | None) -> None:
    await held(port, post("/infer/loud.m", key, b"[", declared=30 * MIB), 400, drip=b" ")


async def _slow_bodies_no_key(port: int, key: str | None) -> None:
    await _slow_bodies(port, "hmi_wrong")


async def _one_byte_chunks(port: int, key: str | None) -> None:
    lines = ("Content-Type: application/json", "Transfer-Encoding: chunked")
    await again_and_again(
        port, head("/infer/loud.m", key, *lines) + b"1\r\n \r\n" * (4 * MIB) + b"0\r\n\r\n", 2
    )


async def _blank_preamble(port: int, key: str | None) -> None:
    lines = ("Content-Type: multipart/form-data; boundary=b", f"Content-Length: {30 * MIB}")
    await again_and_again(port, head("/manage/models", key, *lines) + b"\n" * (30 * MIB), 2)


FLOODS: dict[str, Flood] = {
    **{f"{name}-bomb": _bombs(name, True) for name in ("gzip", "deflate", "zstd")},
    **{f"{name}-bomb-no-key": _bombs(name, False) for name in ("gzip", "deflate", "zstd")},
    "empty-objects": _bodies(lambda: objects(32 * MIB - 16)),
    "nested-objects": _bodies(lambda: objects(32 * MIB - 64, b'{"a":{"a":{"a":{}}}}')),
    "small-inputs": _bodies(lambda: objects(32 * MIB - 64, b'{"text":"a"}')),
    "small-bodies": _bodies(lambda: objects(250_000), clients=16),
    "one-word": _bodies(lambda: b'{"inputs":"' + b"a" * (30 * MIB) + b'"}'),
    "unfinished": _unfinished,
    "unfinished-4": _unfinished_small,
    "half-heads": _half_heads,
    "slow-heads": _slow_heads,
    "slow-bodies": _slow_bodies,
    "slow-bodies-no-key": _slow_bodies_no_key,
    "one-byte-chunks": _one_byte_chunks,
    "blank-preamble": _blank_preamble,
}


async def run(name: str, port: int, seconds: float, key: str | None) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await FLOODS[name](port, key)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), (sys.argv[4:] or [None])[0]))
