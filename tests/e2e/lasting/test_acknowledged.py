"""The server dies, or is stopped, while tenants change things: every change that it acknowledged is there.

One round of each kind in `make test`, HMI_ROUNDS (100) of each in `make stress`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.lasting.ledger import ABSENT, Ledger, Refused
from tests.hmi.labs.server_lab import logged_server
from tests.waiting import until

GONE = (Refused, aiohttp.ClientError, OSError, asyncio.TimeoutError)
CHANGERS, READERS = 4, 2
TEXTS = {"inputs": ["the market falls", "a gene binds"]}
OBJECTIVES = (0.9, 0.95, 0.99)
ROUNDS = int(os.environ.get("HMI_ROUNDS", "100"))


@dataclass
class Trial:
    """A data folder, and what clients of its servers were told."""

    data: Path
    ledger: Ledger = field(default_factory=Ledger)
    keys: dict[str, str] = field(default_factory=dict)
    """The keys that were shown, by the ledger's name of each."""
    right: list[Any] = field(default_factory=list)
    """The outputs of the model for TEXTS, as the first server gave them."""
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    """Requests that got no whole answer although a server had taken their connection."""
    answers: int = 0
    count: int = 0

    def number(self) -> int:
        self.count += 1
        return self.count


@dataclass
class Http:
    """Requests to a server of the trial."""

    session: aiohttp.ClientSession
    trial: Trial

    async def call(self, method: str, path: str, body: Any = None, key: str | None = None) -> Any:
        """Send a request. Raises Refused if the server stops, and one of GONE if no whole answer came."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            async with self.session.request(method, path, json=body, headers=headers) as answer:
                status, text = answer.status, await answer.read()
        except aiohttp.ClientConnectorError:
            raise  # nobody listens
        except GONE as error:
            self.trial.lost.append(f"{method} {path}: {error!r}")
            raise
        if status == 503:
            raise Refused
        assert status < 400, f"{method} {path}: {status} {text!r}"
        return json.loads(text) if text else None


@asynccontextmanager
async def http(url: str, trial: Trial) -> AsyncIterator[Http]:
    # A connection for each request: one that stays open may be closed by either side at any time.
    once = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(url, connector=once, timeout=aiohttp.ClientTimeout(60)) as session:
        yield Http(session, trial)


async def change_for_ever(on: Http, seed: int) -> None:
    """Make one change after another, of objects that only this task changes, until the server is gone."""
    rng, ledger = random.Random(seed), on.trial.ledger
    mine = [f"w{seed}-{on.trial.number()}" for _ in range(2)]
    with suppress(*GONE):
        while True:
            await rng.choice((tenants, weight, keys, objective))(on, rng, ledger, rng.choice(mine), seed)


async def tenants(on: Http, rng: random.Random, ledger: Ledger, tenant: str, seed: int) -> None:
    """Create the tenant, or delete it."""
    if ledger.known.get(tenant, ABSENT) is ABSENT:
        async with ledger.changing(tenant, 1.0):
            await on.call("POST", "/manage/tenants", {"tenant": tenant})
        return
    async with AsyncExitStack() as stack:
        for name in [tenant, *(n for n in ledger.known if n.startswith(f"key {tenant} "))]:
            await stack.enter_async_context(ledger.changing(name, ABSENT))
        await on.call("DELETE", f"/manage/tenants/{tenant}")


async def weight(on: Http, rng: random.Random, ledger: Ledger, tenant: str, seed: int) -> None:
    """Change the tenant's weight."""
    if ledger.known.get(tenant, ABSENT) is ABSENT:
        return
    to = float(rng.randint(1, 900))
    async with ledger.changing(tenant, to):
        await on.call("PATCH", f"/manage/tenants/{tenant}", {"weight": to})


async def keys(on: Http, rng: random.Random, ledger: Ledger, tenant: str, seed: int) -> None:
    """Issue a key, or revoke one."""
    if ledger.known.get(tenant, ABSENT) is ABSENT:
        return
    held = [n for n, state in ledger.known.items() if n.startswith(f"key {tenant} ") and state == "valid"]
    if held and rng.random() < 0.4:
        name = rng.choice(held)
        async with ledger.changing(name, ABSENT):
            await on.call("DELETE", f"/manage/tenants/{tenant}/keys/{name.rpartition(' ')[2]}")
        return
    made = await on.call("POST", f"/manage/tenants/{tenant}/keys", {"scopes": ["infer", "manage"]})
    name = f"key {tenant} {made['key_id']}"
    on.trial.keys[name] = made["key"]
    async with ledger.changing(name, "valid"):
        pass


async def objective(on: Http, rng: random.Random, ledger: Ledger, tenant: str, seed: int) -> None:
    """Change the objective of the model, which one of the tasks alone does."""
    if seed != 0:
        return
    to = rng.choice(OBJECTIVES)
    async with ledger.changing("objective", to):
        await on.call("PATCH", "/manage/models/acme.m", {"objective": {"agreement": to}})


async def read_for_ever(on: Http) -> None:
    with suppress(*GONE):
        while True:
            got = (await on.call("POST", "/infer/acme.m", {**TEXTS, "parameters": {"early": False}}))[
                "outputs"
            ]
            on.trial.answers += 1
            if not alike(got, on.trial.right):
                on.trial.wrong.append(f"{got} instead of {on.trial.right}")


def alike(got: list[Any], right: list[Any]) -> bool:
    """Return whether labels are equal and scores differ by rounding at most."""
    return all(
        a["label"] == b["label"] and abs(a["score"] - b["score"]) < 1e-5
        for a, b in zip(got, right, strict=True)
    )


async def states(on: Http, names: list[str]) -> dict[str, Any]:
    """The state of each object, as the server now shows it."""
    listed = (await on.call("GET", "/manage/tenants"))["tenants"]
    found: dict[str, Any] = {t["tenant"]: t["weight"] for t in listed}
    if "objective" in names:
        found["objective"] = (await on.call("GET", "/manage/models/acme.m"))["objective"]["agreement"]
    for name in names:
        if name.startswith("key "):
            found[name] = await validity(on, on.trial.keys[name], name.split()[1])
    return found


async def validity(on: Http, key: str, tenant: str) -> str:
    """Return "valid" if the server takes the key, else ABSENT."""
    headers = {"Authorization": f"Bearer {key}"}
    async with on.session.get(f"/manage/tenants/{tenant}/usage", headers=headers) as answer:
        assert answer.status in (200, 401), answer.status
        return "valid" if answer.status == 200 else ABSENT


async def checked(trial: Trial, on: Http) -> list[str]:
    """Return what the server lacks of all that it acknowledged."""
    found = await states(on, [*trial.ledger.known, *trial.ledger.open])
    return trial.ledger.settle(lambda name: found.get(name, ABSENT))


async def one_round(trial: Trial, log: Path, way: signal.Signals, rng: random.Random) -> None:
    trial.lost.clear()
    with logged_server(trial.data, log) as (url, process):
        await changes_until(url, process, trial, way, rng)
    assert way is signal.SIGKILL or not trial.lost, trial.lost[:3]
    assert process.returncode == (-way if way is signal.SIGKILL else 0), log.read_text()[-2000:]


async def changes_until(
    url: str, process: subprocess.Popen[bytes], trial: Trial, way: signal.Signals, rng: random.Random
) -> None:
    """Hold the server against the ledger, load it with changes, and send it the signal amid them."""
    async with http(url, trial) as on:
        assert not await checked(trial, on)
        if not trial.right:
            trial.right = (await on.call("POST", "/infer/acme.m", TEXTS))["outputs"]
        before = trial.ledger.acknowledged
        work = [asyncio.create_task(change_for_ever(on, seed)) for seed in range(CHANGERS)]
        work += [asyncio.create_task(read_for_ever(on)) for _ in range(READERS)]
        await until(lambda: trial.ledger.acknowledged > before)
        await asyncio.sleep(rng.uniform(0.0, 2.0))
        process.send_signal(way)
        await asyncio.gather(*work)
        await asyncio.to_thread(process.wait, 60)
    assert not trial.wrong, trial.wrong[:3]


async def rounds(trial: Trial, log: Path, ways: Sequence[signal.Signals]) -> list[str]:
    """Run one server after the other and end each by its signal; the last one is only asked.

    Returns what the last server lacks of all that was acknowledged.
    """
    rng = random.Random(time.time_ns())
    for done, way in enumerate(ways, 1):
        await one_round(trial, log, way, rng)
        tally = f"{trial.ledger.acknowledged} changes, {trial.answers} answers"
        print(f"{done} of {len(ways)}: {tally}", flush=True)
    with logged_server(trial.data, log) as (url, _):
        async with http(url, trial) as on:
            return await checked(trial, on)


@pytest.fixture
def trial(folder: Path) -> Trial:
    return Trial(folder)


async def test_acknowledged_changes_stay(trial: Trial, tmp_path: Path) -> None:
    assert await rounds(trial, tmp_path / "log", [signal.SIGKILL, signal.SIGTERM]) == []


@pytest.mark.slow
@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGTERM], ids=lambda way: way.name)
async def test_a_hundred_times(trial: Trial, tmp_path: Path, way: signal.Signals) -> None:
    assert await rounds(trial, tmp_path / "log", [way] * ROUNDS) == []
