"""The parts that the phases of the soak share: its sizes, its HTTP calls, its data folder with models, and
the right answer of each version of a model to each text."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from bench.cases.serve.churn import VARIANTS
from bench.harness.home import ROOT, Ground, Home, HomeModel, mixed_spec, tenant_of, write_tenants
from hmi.config import Settings
from hmi.manager import Manager

TOLERANCE = 1e-5
"""Largest difference between two scores of one text. A head of several texts may round the last bit in
another way."""
LOST = (aiohttp.ClientError, OSError, TimeoutError)
"""The errors of a call that got no whole answer."""
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class SoakPlan:
    """The sizes of a run. The defaults give figures."""

    minutes: float = 30.0
    """Duration of the watched load."""
    share: float = 0.8
    """The load, as a fraction of the server's capacity beside the same other work."""
    tenants: int = 100
    calibration_s: float = 30.0
    """Seconds in which the capacity is measured."""
    settle_s: float = 180.0
    """Seconds of load before the memory at the beginning is read."""
    change_s: float = 0.5
    """Mean seconds between two changes of which version of a model answers."""
    tenant_s: float = 2.0
    """Mean seconds between two tenants that are created and deleted."""
    flood_s: float = 30.0
    """Seconds between two floods of a tenant, each of a sixth of this."""
    texts: int = 64
    """Different texts that are asked."""


@dataclass
class ClientFigures:
    """The counts and times that the clients saw."""

    answers: int = 0
    """Checked texts."""
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    """Calls of patient clients that got no whole answer."""
    refused: Counter[str] = field(default_factory=Counter)
    """Answers other than success to patient clients, by their status and kind."""
    changes: Counter[str] = field(default_factory=Counter)
    """Acknowledged changes, by what was changed."""
    hostile: Counter[str] = field(default_factory=Counter)
    """Calls of clients that are slow, gone or flooding, by how they ended."""
    late: list[tuple[float, float]] = field(default_factory=list)
    """The beginning of each call in `time.monotonic()`, and its milliseconds."""
    memory: list[tuple[float, int]] = field(default_factory=list)
    """The server's own memory in bytes, with the time."""
    connections: list[tuple[float, int]] = field(default_factory=list)
    """The server's open connections, with the time."""


class NotOk(Exception):
    """An answer that is no success: its status and its kind."""


@dataclass(frozen=True)
class Http:
    """Calls to the server of a soak."""

    session: aiohttp.ClientSession
    port: int

    async def json(
        self, method: str, path: str, body: Any = None, key: str = "", form: aiohttp.FormData | None = None
    ) -> Any:
        """Send a request and return the answer's JSON. Raises NotOk, and one of LOST."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with self.session.request(method, path, json=body, data=form, headers=headers) as answer:
            got = await answer.json(content_type=None)
            if answer.status >= 400:
                raise NotOk(f"{answer.status} {got['error']['kind']}")
            return got


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Http]:
    """Connect to the server on `port` of loopback."""
    limits, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(TIMEOUT_S)
    url = f"http://127.0.0.1:{port}"
    async with aiohttp.ClientSession(url, connector=limits, timeout=timeout) as session:
        yield Http(session, port)


@dataclass
class Standing:
    """The versions of one model that may answer now."""

    may: set[int] = field(default_factory=lambda: {VARIANTS})
    """The versions that may answer. There are several while a change is under way."""
    change: int = 0
    """Counts the changes, so that a call knows whether one came between."""


@dataclass
class Soil:
    """Models with two versions each, and the scores of both by model, version and text."""

    home: Home
    texts: list[str]
    right: dict[tuple[int, int, int], dict[str, float]] = field(default_factory=dict)
    standing: list[Standing] = field(default_factory=list)

    def path(self, model: int) -> str:
        return str(self.home.model(model))

    def fault(self, model: int, may: set[int], texts: Sequence[int], answer: dict[str, Any]) -> str | None:
        """Return the fault of an answer, or None if it is right. may: the versions that may have answered."""
        version, outputs = answer["version"], answer["outputs"]
        if answer["model"] != self.path(model) or version not in may or len(outputs) != len(texts):
            return f"{answer['model']} version {version} answered for {self.path(model)}, {sorted(may)}"
        for text, output in zip(texts, outputs, strict=True):
            right = self.right[model, version, text]
            off = max(abs(output["scores"][label] - right[label]) for label in right)
            if off > TOLERANCE:
                return f"{self.path(model)} version {version}, text {text}: off by {off:.2g}"
        return None


def add_versions(home: Home) -> None:
    """Give each tenant's model a second version. Raises StorageFull."""
    with closing(Manager(Settings(data=home.data))) as manager:
        second = [
            HomeModel(tenant_of(i), 1_000_000 + i, mixed_spec(i), VARIANTS) for i in range(home.tenants)
        ]
        write_tenants(manager, Ground.of(manager, ROOT), second)


async def learn(http: Http, plan: SoakPlan, home: Home) -> Soil:
    """Ask every version of every model every text, one at a time, and keep the answers."""
    soil = Soil(home, home.texts().of(None, plan.texts))
    for model in range(plan.tenants):
        soil.standing.append(Standing())
        path, key = soil.path(model), home.key(model)
        for version in (1, VARIANTS):
            await http.json("POST", f"/manage/models/{path}/rollback", {"version": version})
            for text, words in enumerate(soil.texts):
                answer = await http.json("POST", f"/infer/{path}", asking([words]), key)
                soil.right[model, version, text] = answer["outputs"][0]["scores"]
    return soil


def asking(texts: Sequence[str]) -> dict[str, object]:
    return {"inputs": list(texts), "parameters": {"return": ["scores"]}}
