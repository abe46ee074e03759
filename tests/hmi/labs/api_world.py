"""A real server on its own data folder, in this process, for the tests of the HTTP API."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientResponse, FormData
from aiohttp.test_utils import TestClient, TestServer

from hmi.api.http.services import Services
from hmi.api.process.application import application
from hmi.api.process.building import build_services
from hmi.cli import main
from hmi.config import Settings
from hmi.core import ENDED
from tests.tiny import random_texts

LABELS = ("finance", "biology")
MODEL = {"model": "acme.m", "domain": "tiny", "task": "classification"}


@dataclass
class World:
    """A server and a client that sends JSON."""

    services: Services
    client: TestClient[Any, Any]
    key: str | None = None

    async def call(
        self, method: str, path: str, body: Any = None, *, key: str | None = None, **given: Any
    ) -> tuple[int, Any, ClientResponse]:
        """Send a request; return (status, JSON body, response)."""
        headers = dict(given.pop("headers", {}))
        key = key or self.key
        if key:
            headers["Authorization"] = f"Bearer {key}"
        if body is not None:
            given["json"] = body
        async with self.client.request(method, path, headers=headers, **given) as response:
            return response.status, await response.json(), response

    async def upload(
        self, path: str, spec: Any, files: dict[str, bytes], **given: Any
    ) -> tuple[int, Any, Any]:
        """As `call`, with a multipart body."""
        form = FormData()
        form.add_field("spec", json.dumps(spec), content_type="application/json")
        for name, data in files.items():
            form.add_field(name, data, filename=name, content_type="application/octet-stream")
        return await self.call("POST", path, data=form, **given)

    async def finish(self, job: str) -> dict[str, Any]:
        """Wait until a job has ended, and return its record."""
        while True:
            _, view, _ = await self.call("GET", f"/manage/jobs/{job}")
            if view["state"] in ENDED:
                return dict(view)
            await asyncio.sleep(0.05)


async def tenant(world: World, name: str = "acme", **given: Any) -> str:
    """Create a tenant over HTTP and return its key."""
    status, made, _ = await world.call("POST", "/manage/tenants", {"tenant": name}, **given)
    assert status == 201
    return str(made["key"])


def is_ready(url: str) -> bool:
    """Whether the server at `url` answers that it is ready."""
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, Any, bytes]:
    """Read an answer from a bare connection; return (status, JSON body, head of the answer)."""
    head = await reader.readuntil(b"\r\n\r\n")
    size = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-le")
    )
    return int(head.split()[1]), json.loads(await reader.readexactly(size)), head


@asynccontextmanager
async def running(data: Path, *, engine: Any = None, **settings: Any) -> AsyncIterator[World]:
    """Run a server. engine: answers in place of the real engine, for tests of what comes before it."""
    given = Settings(data=data, **{"improve": False, **settings})
    services = build_services(given) if engine is None else build_services(given, lambda *_: engine)
    server = TestServer(application(services), host="127.0.0.1")
    async with TestClient(server) as client:
        yield World(services, client)


def hmi(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    """Run a command in this process: its standard output, or, where it must fail, its standard error."""
    with pytest.raises(SystemExit) as caught:
        main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    assert caught.value.code == code, err
    assert "Traceback" not in err
    return out if code == 0 else err


def made_folder(base: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Create a data folder by the command line, once: the root `tiny`, the tenant
    acme and its model acme.m."""
    folder = base / "made"
    if folder.exists():
        return folder
    data = ("--data", folder)
    (base / "text").write_bytes(corpus(400))
    (base / "rows").write_bytes(rows())
    steps = ("--option", "steps=2", "--option", "upper_steps=0")
    hmi(capsys, "root", "import", "tiny", source, "--text", base / "text", "--alpha", 10, *steps, *data)
    hmi(capsys, "tenant", "create", "acme", *data)
    options = ("--option", "epochs=1", "--option", "module.rank=2", "--option", "max_length=32")
    options += ("--option", "ramps=false")
    made = hmi(
        capsys, "model", "create", "acme.m", base / "rows", "--domain", "tiny", "--json", *options, *data
    )
    assert json.loads(made)["state"] == "succeeded"
    assert (base / "rows").exists(), "a user's own file is copied, not moved"
    return folder


def corpus(count: int = 150, seed: int = 3) -> bytes:
    return "\n".join(random_texts(count, seed=seed, low=6)).encode()


def rows(count: int = 40) -> bytes:
    """Labelled rows that a tiny model can learn."""
    texts = [
        f"{'market stock price' if i % 2 else 'cell gene protein'} {t}"
        for i, t in enumerate(random_texts(count, seed=5, high=4))
    ]
    return "\n".join(
        json.dumps({"text": t, "label": LABELS[i % 2 == 0]}) for i, t in enumerate(texts)
    ).encode()
