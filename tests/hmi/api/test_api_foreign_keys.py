"""Keys of other servers' clients: ignored exactly where the same call without a key is admitted.

The table, whose every cell is tried over HTTP, and over gRPC where no browser can come from:

| the call sends | it would be admitted without a key | it would not |
|---|---|---|
| no key | the administrator | 403 on an open server (proxy, foreign page), else 401 |
| a key that is not HMI's | the administrator | 401 |
| an unknown, revoked or expired key of HMI, also damaged | 401 | 401 |
| a header that is no key | 401 | 401 |
| a tenant's key | the tenant | the tenant |

A call without a key is admitted if the server listens on loopback, no administrator's key exists, no proxy
has added a header, and Host and Origin are of this machine.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import openai
import pytest

from bench.harness.server import free_port
from hmi.api.http.services import Services
from hmi.api.rpc.server import RpcServer
from hmi.core import now
from hmi.manager.tenants import new_key
from tests.hmi.labs.api_world import World, running

FOREIGN = ("none", "EMPTY", "sk-proj-0123456789", "hm_i", "x" * 500)
"""What clients of other servers send."""
PLACES = (
    ({}, True),
    ({"Origin": "http://localhost:3000"}, True),
    ({"Host": "localhost:8080"}, True),
    ({"Origin": "https://evil.example"}, False),
    ({"Origin": "null"}, False),
    ({"Host": "evil.example"}, False),
)
"""Headers that tell where a call comes from, and whether that is this machine."""
PROXIES = ({}, {"X-Forwarded-For": "127.0.0.1"}, {"Via": "1.1 proxy"})
ADMINISTRATOR, ACME = (200, None), (200, "acme")
"""Status, and the tenant as whom the caller is seen: None for the administrator."""


@dataclass(frozen=True)
class Keys:
    """Headers Authorization by what they hold."""

    foreign: tuple[str, ...]
    refused: tuple[str, ...]
    acme: str


def keys_of(services: Services) -> Keys:
    """A tenant's key, and keys of HMI that do not work any more, or never did."""
    manager = services.manager
    manager.create_tenant("acme")
    _, good = manager.create_key("acme")
    revoked_record, revoked = manager.create_key("acme")
    manager.revoke_key(revoked_record.key_id)
    expired_record, expired = new_key("acme", ("infer", "manage"), expires=now())
    manager.registry.put_key(expired_record)
    wrong = ("hmi_none", revoked, expired, f'"{good}"', f"Bearer {good}", good.upper(), f"sk-{good}")
    malformed = ("Basic bm9uZTpub25l", "none", "Bearer", "Bearer  ")
    refused = (*(f"Bearer {key}" for key in wrong), *malformed)
    return Keys(tuple(f"Bearer {key}" for key in FOREIGN), refused, f"Bearer {good}")


async def seen(world: World, headers: dict[str, str]) -> tuple[int, str | None]:
    """The status of a call, and the tenant as whom the caller is seen."""
    async with world.client.get("/manage/overview", headers=headers) as answer:
        body = await answer.json()
        return answer.status, body["caller"]["tenant"] if answer.status == 200 else "-"


async def check_cells(world: World, keys: Keys, *, is_open: bool) -> None:
    for (place, local), proxy in itertools.product(PLACES, PROXIES):
        admitted = is_open and local and not proxy
        about = {**place, **proxy}
        cells = [({}, ADMINISTRATOR if admitted else (403 if is_open else 401, "-"))]
        cells += [({"Authorization": key}, ADMINISTRATOR if admitted else (401, "-")) for key in keys.foreign]
        cells += [({"Authorization": key}, (401, "-")) for key in keys.refused]
        cells += [({"Authorization": keys.acme}, ACME)]
        for sent, wanted in cells:
            assert await seen(world, {**about, **sent}) == wanted, (is_open, about, sent)


async def test_every_cell_over_http(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path / "here") as world:
        keys = keys_of(world.services)
        await check_cells(world, keys, is_open=True)
        said = [r.getMessage() for r in caplog.records if "not HMI's" in r.getMessage()]
        assert len(said) == 1, "once, however many calls"
        assert not any(key in said[0] for key in FOREIGN), "a key is nothing for the log"
        world.services.manager.create_key(None, ("admin",))
        await check_cells(world, keys, is_open=False)
    async with running(tmp_path / "everywhere", host="0.0.0.0") as world:
        await check_cells(world, keys_of(world.services), is_open=False)


async def test_a_key_of_another_form_that_is_stored_is_checked(tmp_path: Path) -> None:
    """None is issued today; a folder may still have one."""
    async with running(tmp_path) as world:
        keys_of(world.services)
        record, plain = new_key("acme", ("infer", "manage"))
        other = plain.removeprefix("hmi_")
        sha256 = hashlib.sha256(other.encode()).hexdigest()
        world.services.manager.registry.put_key(record.model_copy(update={"sha256": sha256}))
        assert await seen(world, {"Authorization": f"Bearer {other}"}) == ACME


@asynccontextmanager
async def port_of(services: Services) -> AsyncIterator[Any]:
    """A port for gRPC beside a running server: the call that asks for a model."""
    rpc = RpcServer(services)
    await rpc.start()
    try:
        async with grpc.aio.insecure_channel(rpc.address) as channel:
            yield channel.unary_unary("/inference.GRPCInferenceService/ModelMetadata")
    finally:
        await rpc.stop()


async def code_of(call: Any, **metadata: str) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(b"\x0a\x06acme.m", metadata=tuple(metadata.items()))
    return str(caught.value.code().name)


async def check_rpc_cells(call: Any, keys: Keys, *, is_open: bool) -> None:
    """NOT_FOUND is the answer to a caller who is known: there is no such model."""
    for proxy in ({}, {"x-forwarded-for": "127.0.0.1"}):
        admitted = is_open and not proxy
        keyless = "NOT_FOUND" if admitted else "PERMISSION_DENIED" if is_open else "UNAUTHENTICATED"
        assert await code_of(call, **proxy) == keyless
        for key in keys.foreign:
            wanted = "NOT_FOUND" if admitted else "UNAUTHENTICATED"
            assert await code_of(call, authorization=key, **proxy) == wanted, (is_open, proxy, key)
        for key in keys.refused:
            assert await code_of(call, authorization=key.strip(), **proxy) == "UNAUTHENTICATED", key
        assert await code_of(call, authorization=keys.acme, **proxy) == "NOT_FOUND"


async def test_every_cell_over_grpc(tmp_path: Path) -> None:
    async with running(tmp_path / "here", grpc_port=free_port()) as world, port_of(world.services) as call:
        keys = keys_of(world.services)
        await check_rpc_cells(call, keys, is_open=True)
        world.services.manager.create_key(None, ("admin",))
        await check_rpc_cells(call, keys, is_open=False)
    everywhere = running(tmp_path / "everywhere", host="0.0.0.0", grpc_port=free_port())
    async with everywhere as world, port_of(world.services) as call:
        await check_rpc_cells(call, keys_of(world.services), is_open=False)


async def test_clients_as_they_come(tmp_path: Path) -> None:
    """OpenAI's client cannot leave the key out; the Open Inference Protocol's header is the same."""
    async with running(tmp_path) as world:
        url = str(world.client.make_url("/v1"))
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            assert [model.id async for model in client.models.list()] == []
            status, listed, _ = await world.call("POST", "/v2/repository/index", {}, key="none")
            assert (status, listed) == (200, [])
            world.services.manager.create_key(None, ("admin",))
            with pytest.raises(openai.AuthenticationError, match="begin with 'hmi_'"):
                await client.models.list()
        status, _, _ = await world.call("POST", "/v2/repository/index", {}, key="none")
        assert status == 401
