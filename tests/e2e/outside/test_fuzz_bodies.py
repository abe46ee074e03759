"""Every reader of bodies gets unsound ones: no answer is a 5xx, and the server's memory stays bounded.

A hundred inputs a reader in `make test`, HMI_INPUTS (100,000) a reader in `make stress`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from bench.harness.server import free_port
from hmi.resident import resident
from tests.e2e.outside.fuzz_seeds import MESSAGES, READERS, Reader
from tests.hmi.labs.server_lab import logged_server

INPUTS = int(os.environ.get("HMI_INPUTS", "100000"))
CLIENTS = 4
GROWTH = 96 << 20
"""The most memory, in bytes, by which the server may grow while one reader is fuzzed."""
SOUND = {503, 504}
"""The 5xx that a sound server answers, too: it is overloaded, or a drawn deadline passed."""
FAULTS = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
ODD = (
    *(b"null", b"[]", b"{}", b"-1", b"1e999", b"NaN", b'"\\ud800"', b'"\\u0000"', b"[[[[[[[[", b"true"),
    *(b"\xff\xfe", b"\x00", b"\r\n\r\n", b"--frontier--", b'{"inputs":', b"../../etc/passwd", b"9" * 400),
)
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**63, 1e308, 0.5, "", " ", "a", "\0", "\ud800", "../x", "acme.m", "é🙂" * 50),
    *([], {}, [None], [["a"]], {"text": "x"}, {"path": "../x"}, ["a"] * 2000),
)


def unsound(reader: Reader, rng: random.Random) -> bytes:
    """Return a body with changes to its values, to its bytes, or to its bytes after compression."""
    data = rng.choice(reader.seeds)
    if rng.random() < 0.5:
        with suppress(ValueError):
            data = json.dumps(altered(json.loads(data), rng)).encode()
        return reader.pack(data)
    if rng.random() < 0.5:
        return reader.pack(spoilt(data, reader.seeds, rng))
    return spoilt(reader.pack(data), tuple(map(reader.pack, reader.seeds)), rng)


def altered(value: Any, rng: random.Random) -> Any:
    """Return a JSON value in which some values are others, are gone, or stand twice."""
    if rng.random() < 0.12:
        return rng.choice(VALUES)
    if isinstance(value, dict):
        kept = {name: altered(inner, rng) for name, inner in value.items() if rng.random() < 0.95}
        return kept | ({rng.choice(("x", "", "inputs", "__proto__")): 1} if rng.random() < 0.05 else {})
    if isinstance(value, list):
        return [altered(inner, rng) for inner in value for _ in range(rng.choice((1, 1, 1, 0, 2)))]
    return value


def spoilt(data: bytes, seeds: tuple[bytes, ...], rng: random.Random) -> bytes:
    """Return the bytes with one to four changes."""
    spoiling = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        spoil(spoiling, seeds, rng)
    return bytes(spoiling)


def spoil(data: bytearray, seeds: tuple[bytes, ...], rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    to = min(len(data), at + rng.randint(1, 24))
    match rng.randrange(7):
        case 0 if at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        case 1:
            del data[at:to]
        case 2:
            data[at:at] = data[at:to] * rng.randint(1, 9)
        case 3:
            data[at:to] = rng.choice(ODD)
        case 4:
            data[at:at] = rng.randbytes(rng.randint(1, 16))
        case 5:
            del data[at:]
        case _:
            other = rng.choice(seeds)
            data[at:] = other[rng.randrange(len(other)) :]


async def send(port: int, reader: Reader, bodies: list[bytes], found: Counter[int]) -> None:
    """Send the bodies, one after another, on as few connections as the server allows."""
    head = f"POST {reader.path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in reader.headers.items())
    connection = None
    for body in bodies:
        if connection is None:
            connection = await asyncio.open_connection("127.0.0.1", port)
        incoming, outgoing = connection
        outgoing.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = (await incoming.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        fields = dict(line.split(": ", 1) for line in answer.split("\r\n")[1:] if line)
        content = await incoming.readexactly(int(fields.get("content-length", 0)))
        status = int(answer.split()[1])
        found[status] += 1
        assert status < 500 or status in SOUND, f"{reader.name}: {status} {content!r} for {body!r}"
        if fields.get("connection") == "close":
            outgoing.close()
            connection = None
    if connection is not None:
        connection[1].close()


async def fuzz(port: int, pid: int, reader: Reader, count: int, seed: int) -> Counter[int]:
    """Fuzz one reader. Returns the answers by status."""
    rng, found = random.Random(seed), Counter[int]()
    before = resident(pid).anonymous
    bodies = [[unsound(reader, rng) for _ in range(count // CLIENTS)] for _ in range(CLIENTS)]
    await asyncio.gather(*(send(port, reader, some, found) for some in bodies))
    grown = resident(pid).anonymous - before
    assert grown < GROWTH, f"{reader.name}: the server grew by {grown >> 20} MiB"
    return found


async def fuzz_messages(address: str, count: int) -> Counter[str]:
    """Send unsound messages to gRPC's ModelInfer. Returns the answers by their status."""
    rng, found, wrong = random.Random(count), Counter[str](), list[str]()
    async with grpc.aio.insecure_channel(address) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")

        async def client() -> None:
            for _ in range(count // CLIENTS):
                sent = spoilt(rng.choice(MESSAGES), MESSAGES, rng)
                try:
                    await infer(sent)
                    found["OK"] += 1
                except grpc.aio.AioRpcError as error:
                    found[error.code().name] += 1
                    told = f"{error.code().name} {error.details()} for {sent!r}"
                    wrong.extend([told] if error.code() in FAULTS else [])

        for message in MESSAGES:
            await infer(message)
        await asyncio.gather(*(client() for _ in range(CLIENTS)))
    assert not wrong, wrong[:3]
    return found


async def all_readers(data: Path, log: Path, count: int) -> str:
    """Fuzz every reader of one server. Returns the server's log."""
    port = free_port()
    with logged_server(data, log, "--grpc-port", str(port)) as (url, process):
        print(f"grpc: {dict(await fuzz_messages(f'127.0.0.1:{port}', count))}", flush=True)
        port = int(url.rpartition(":")[2])
        for reader in READERS:
            await send(port, reader, [reader.pack(seed) for seed in reader.seeds], Counter())
            found = await fuzz(port, process.pid, reader, int(count * reader.fraction), seed=count)
            print(f"{reader.name}: {dict(found)}", flush=True)
            assert set(found) - {200}, "nothing was refused: the inputs were not unsound"
    return log.read_text()


async def test_unsound_bodies(folder: Path, tmp_path: Path) -> None:
    assert "Traceback" not in await all_readers(folder, tmp_path / "log", 100)


@pytest.mark.slow
async def test_many_unsound_bodies(folder: Path, tmp_path: Path) -> None:
    assert "Traceback" not in await all_readers(folder, tmp_path / "log", INPUTS)
