"""Models, tenants, domains and roots are published, rolled back and deleted while requests are answered."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from hmi.core import ModelId, ModelVersion
from hmi.engine import Engine, TextRequest, TextResult
from hmi.errors import NotFound
from hmi.manager import Manager
from tests.e2e.conftest import Home

ROUNDS = 20
BYSTANDER = ModelId("globex", "mood")


@dataclass
class Fleet:
    """Models whose answers are known: their heads differ in one number, the bias of the label `pos`."""

    home: Home
    engine: Engine
    odds: dict[str, float] = field(default_factory=dict)
    """By text: the log of pos / neg with a bias of 0."""
    states: dict[ModelId, list[float | None]] = field(default_factory=dict)
    """By model: the biases that it has had, the latest last; None while it does not exist."""
    since: Counter[ModelId] = field(default_factory=Counter)
    """By model: the index of the state that holds for certain."""
    deleted: set[str] = field(default_factory=set)
    """Artefacts of deleted models."""
    outcomes: Counter[str] = field(default_factory=Counter)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def manager(self) -> Manager:
        return self.home.manager

    async def change(self, model: ModelId, bias: float | None, act: Callable[[], object]) -> None:
        """Run `act`, which gives the model this bias. While it runs, the old and the new one may answer."""
        states = self.states.setdefault(model, [None])
        states.append(bias)
        at = len(states) - 1
        await asyncio.to_thread(act)
        self.since[model] = at

    def publish(self, model: ModelId, bias: float, **changes: str) -> ModelVersion:
        state = self.home.state("acme.mood")
        number = next(self.numbers)
        state["head.out.bias"] = torch.tensor([0.0, bias]).half()
        artefact, size = self.manager.adapters.put(state, {"number": str(number)})  # unique
        like = self.manager.registry.model(ModelId("acme", "mood")).live
        about = {"artefact": artefact, "version": 0, "bytes": size, "job": f"job{number}", **changes}
        return self.manager.registry.publish_model(model, like.model_copy(update=about)).versions[-1]

    def delete(self, model: ModelId) -> None:
        self.deleted |= {v.artefact for v in self.manager.registry.model(model).versions}
        self.manager.delete_model(str(model))

    def expected(self, text: str, bias: float) -> float:
        return 1 / (1 + math.exp(-self.odds[text] - bias))

    async def ask(self, model: ModelId, text: str) -> None:
        """Ask once; the answer must be right for a state that the model had meanwhile."""
        first = self.since[model]
        try:
            (result,) = await self.engine.infer([TextRequest(model, text, scores=True)])
        except NotFound:
            assert None in self.states[model][first:]
            self.outcomes["not found"] += 1
            return
        possible = [self.expected(text, bias) for bias in self.states[model][first:] if bias is not None]
        assert any(abs(pos(result) - p) < 1e-3 for p in possible), (pos(result), possible)
        self.outcomes["answered"] += 1

    @asynccontextmanager
    async def under_load(self) -> AsyncIterator[None]:
        """Ask for all models without a pause in the block. Raises what a client raises."""
        done = asyncio.Event()

        async def client(seed: int) -> None:
            rng = random.Random(seed)
            while not done.is_set():
                if self.states:
                    await self.ask(rng.choice(list(self.states)), rng.choice(list(self.odds)))
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as clients:
            for seed in range(4):
                clients.create_task(client(seed))
            try:
                yield
            finally:
                done.set()


def pos(result: TextResult) -> float:
    assert result.scores is not None
    return result.scores["pos"]


@asynccontextmanager
async def fleet_of(home: Home) -> AsyncIterator[Fleet]:
    engine = home.engine(pool_bytes=1 << 20)
    await engine.start()
    fleet = Fleet(home, engine)
    home.manager.on_deleted = engine.forget
    home.manager.create_tenant("umbra")
    plain = ModelId("umbra", "plain")
    fleet.publish(plain, 0.0)
    for text in home.covered[:5]:
        (result,) = await engine.infer([TextRequest(plain, text, scores=True)])
        fleet.odds[text] = math.log(pos(result) / (1 - pos(result)))
    before = [(await engine.infer([TextRequest(BYSTANDER, t, scores=True)]))[0] for t in fleet.odds]
    try:
        yield fleet
        after = [(await engine.infer([TextRequest(BYSTANDER, t, scores=True)]))[0] for t in fleet.odds]
        assert [r.scores for r in after] == [r.scores for r in before], "the same bits for everybody else"
        pool = engine._loader._pool
        for _ in range(1_000):  # a batch gives back what it used after its answers
            if not fleet.deleted & set(pool.resident()):
                break
            await asyncio.sleep(0.01)
        assert not fleet.deleted & set(pool.resident())
        assert not pool._needed
        assert fleet.outcomes["answered"] > ROUNDS
    finally:
        await engine.stop()
        home.manager.on_deleted = lambda gone: None
        fleet.delete(plain)
        home.manager.delete_tenant("umbra")


async def test_models_and_tenants_change_under_load(home: Home) -> None:
    async with fleet_of(home) as fleet:
        manager = fleet.manager
        kept, gone = ModelId("umbra", "kept"), ModelId("umbra", "gone")
        first = fleet.publish(kept, -2.0)
        fleet.states[kept] = [-2.0]
        async with fleet.under_load():
            for i in range(ROUNDS):
                bias, tenant = 1 + i / 8, ModelId(f"tenant{i}", "mood")
                await fleet.change(kept, bias, lambda bias=bias: fleet.publish(kept, bias))
                await fleet.change(gone, -bias, lambda bias=bias: fleet.publish(gone, -bias))
                await asyncio.to_thread(manager.create_tenant, tenant.tenant)
                await fleet.change(tenant, bias, lambda t=tenant, bias=bias: fleet.publish(t, bias))
                await asyncio.gather(*(fleet.ask(m, fleet.home.covered[0]) for m in (kept, gone, tenant)))
                if first.version in {v.version for v in manager.model(str(kept)).versions}:
                    await fleet.change(kept, -2.0, lambda: manager.rollback_model(str(kept), first.version))
                await fleet.change(gone, None, lambda: fleet.delete(gone))
                fleet.deleted.add(manager.model(str(tenant)).live.artefact)
                await fleet.change(tenant, None, lambda t=tenant: manager.delete_tenant(t.tenant))
        assert fleet.outcomes["not found"] > ROUNDS
        await asyncio.to_thread(fleet.delete, kept)


async def test_domains_are_deleted_under_load(home: Home, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    home.manager.export_domain(home.manager.domain("tiny/full").current, archive, lambda *_: None)
    async with fleet_of(home) as fleet:
        readers = fleet.engine._loader._bundles._readers
        async with fleet.under_load():
            for i in range(ROUNDS):
                name, model = f"tiny/copy{i}", ModelId("umbra", f"on-copy{i}")
                await asyncio.to_thread(fleet.manager.import_domain, archive, name, lambda *_: None)
                plot = fleet.manager.domain(name).current
                about = {"domain": name, "plot_version": plot}
                await fleet.change(model, i / 8, lambda m=model, i=i, a=about: fleet.publish(m, i / 8, **a))
                await fleet.ask(model, fleet.home.covered[0])
                assert ("plot", plot) in readers._values
                await fleet.change(model, None, lambda m=model: fleet.delete(m))
                await asyncio.to_thread(fleet.manager.delete_domain, name)
                assert ("plot", plot) not in readers._values


async def test_roots_are_deleted_under_load(home: Home) -> None:
    record = home.manager.registry.root("tiny")
    layout = home.manager._parts.layout
    async with fleet_of(home) as fleet:
        uppers = fleet.engine._loader._bundles._uppers
        async with fleet.under_load():
            for i in range(ROUNDS):
                name, model = f"twin{i}", ModelId("umbra", f"on-twin{i}")
                shutil.copytree(layout.roots / "tiny", layout.roots / name)
                fleet.manager.registry.put_root(record.model_copy(update={"name": name}))
                about = {"domain": name, "root": name}
                await fleet.change(model, i / 8, lambda m=model, i=i, a=about: fleet.publish(m, i / 8, **a))
                await fleet.ask(model, fleet.home.covered[0])
                assert ("root", name, record.version) in uppers._values
                await fleet.change(model, None, lambda m=model: fleet.delete(m))
                await asyncio.to_thread(fleet.manager.delete_root, name)
                assert ("root", name, record.version) not in uppers._values
                assert not (layout.roots / name).exists()
