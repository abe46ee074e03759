"""The engines that a section compares, in one process over the same roots, and how they are asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from bench.cases.serve.engine import Serving, by_callers, chosen, serving
from bench.cases.stages.arrivals import Seconds
from bench.cases.stages.home import LARGE, TaskHome
from bench.cases.stages.plan import ProgressReport, StagesPlan
from bench.harness.report import Figure
from hmi.core import ModelId, ModelRecord, Objective
from hmi.engine import Engine, TextRequest, TextResult
from hmi.engine.admit.bundles import Bundles, Upper
from hmi.execution.batch import BatchKey
from hmi.execution.choose import Chosen
from hmi.metrics import Metrics
from hmi.stages.base import OFF, Effect, Setting, Shape
from hmi.stages.cascade.stage import CascadeInside
from hmi.stages.early_exit.report import ExitReport
from hmi.stages.early_exit.stage import EarlyExit
from hmi.stages.planner import Planner, RoundRobin
from hmi.stages.planning.cost import Cost
from hmi.stages.planning.profile import READS, Lab, cost_of
from hmi.stages.token_adaptation.stage import TokenAdaptation
from hmi.stores.layout import Layout
from hmi.stores.profiles import StageProfiles

K = TypeVar("K")
T = TypeVar("T")
CAPACITY_TEXTS = 300
"""The texts by which the engine's capacity is measured."""
LOAD = 0.5
"""Paced arrivals a second, as a fraction of the capacity."""
FIGURES: Mapping[str, Callable[[Seconds], float]] = {
    "p50": lambda seconds: float(np.percentile(seconds, 50)),
    "p95": lambda seconds: float(np.percentile(seconds, 95)),
    "mean": lambda seconds: float(seconds.mean()),
}


@dataclass(frozen=True)
class Answered:
    """One text's answer."""

    label: str
    seconds: float
    """From its arrival to its answer."""
    layers: int
    """The upper layers that ran."""
    level: str | None
    """The level of the cascade between two roots that answered."""
    result: TextResult


@dataclass(frozen=True)
class AnsweredRun:
    """The answers of one run, in the requests' order."""

    answers: list[Answered]
    seconds: float
    cpu_s: float
    """CPU seconds of this process."""

    @property
    def rate(self) -> float:
        """Answers a second."""
        return len(self.answers) / self.seconds


class Switched:
    """A stage with one setting beside off. A subclass adds its hooks."""

    def __init__(self, name: str) -> None:
        self.name, self._setting = name, Setting(name)

    def settings(self, key: BatchKey) -> Sequence[Setting]:
        return (OFF, self._setting)

    def effect(self, setting: Setting, shape: Shape) -> Effect:
        return Effect(rows=(1.0,) * shape.layers)


class SharedBundles(Bundles):
    """Bundles that several engines use: they stay open when an engine stops."""

    def close(self) -> None:
        """Do nothing: `end` closes them."""

    def end(self) -> None:
        super().close()


@dataclass(frozen=True)
class EngineLab:
    """A home whose roots are in memory. Engines that it starts share them, and nothing else."""

    serving: Serving
    plan: StagesPlan
    home: TaskHome
    report: ProgressReport

    @asynccontextmanager
    async def engine(self, planner: Planner | None = None, **settings: Any) -> AsyncIterator[Engine]:
        """Run an engine with changed settings.

        planner: None is the server's own, which follows from the settings.
        """
        changed = replace(self.serving.manager.settings, **settings)
        engine = Engine(self.serving.bundles, changed, Metrics(), None, planner)
        await engine.start()
        try:
            yield engine
        finally:
            await engine.stop()

    @asynccontextmanager
    async def pair(self) -> AsyncIterator[tuple[Engine, Engine]]:
        """Run an engine without stages, and one with exits and cascades and no states of earlier runs."""
        stages = RoundRobin([EarlyExit(), CascadeInside()])
        async with self.engine(RoundRobin()) as plain, self.engine(stages) as staged:
            yield plain, staged

    async def closed(self, engine: Engine, requests: Sequence[TextRequest]) -> AnsweredRun:
        """Let the plan's callers ask the requests in their order. Each waits for its answer before it asks
        the next."""
        now = asyncio.get_running_loop().time
        asks = by_callers(self.plan.callers, requests, lambda request: _answered(engine, request, now()))
        return await self._timed(asks)

    async def paced(self, engine: Engine, requests: Sequence[TextRequest], arrivals: Seconds) -> AnsweredRun:
        """Ask each request at its time, whether others are answered or not, and wait for the last answer."""
        return await self._timed(at_times(arrivals, lambda i, due: _answered(engine, requests[i], due)))

    async def _timed(self, asks: Awaitable[list[Answered]]) -> AnsweredRun:
        begun, cpu = time.monotonic(), time.process_time()
        answers = await asks
        seconds, cpu = time.monotonic() - begun, time.process_time() - cpu
        self.report.did(len(answers))
        return AnsweredRun(answers, seconds, cpu)

    async def rate(self, model: ModelId, texts: Sequence[str]) -> float:
        """The texts a second of paced streams: LOAD of what an engine without stages answers."""
        requests = requests_of(model, texts[:CAPACITY_TEXTS], "capacity")
        async with self.engine(RoundRobin()) as engine:
            await self.closed(engine, requests)
            return LOAD * (await self.closed(engine, requests)).rate

    def in_turn(self, count: int, name: str, model: str = LARGE) -> list[TextRequest]:
        """The first `count` texts of each task, a text of each task after the other."""
        home = self.home
        each = [requests_of(home.model(t, model), t.asked[:count], f"{name}-{t.name}") for t in home.tasks]
        return [request for together in zip(*each, strict=True) for request in together]

    def record(self, model: ModelId) -> ModelRecord:
        return self.serving.manager.registry.model(model)

    def agree(self, model: ModelId, agreement: float | None, under_load: float | None = None) -> None:
        """Set the fraction of a model's answers that must equal the full model's; None: no stage.

        under_load: the same for token adaptation.
        """
        objective = Objective(agreement=agreement, agreement_under_load=under_load)
        self.serving.manager.registry.change_model(
            model, lambda record: record.model_copy(update={"objective": objective})
        )

    def upper(self, model: ModelId) -> Upper:
        """The upper layers of a model's root."""
        found = self.serving.bundles.upper(self.record(model).live).now()
        assert found is not None, "the lab has asked each root"
        return found

    def depth(self, model: ModelId) -> int:
        """The number of upper layers of a model's root."""
        return self.upper(model).executor.layers

    def exits(self, engine: Engine, model: ModelId) -> ExitReport | None:
        """An engine's report of a model's exits; None if no text of the model was concerned."""
        artefact = self.record(model).live.artefact
        return None if engine.exits is None else engine.exits.report(artefact, model)

    def costs(self, model: ModelId) -> Callable[[BatchKey], Cost | None]:
        """The measured costs of batches of a model's root under token adaptation's settings.

        They are measured now, if the folder has no profile of them: for most of a minute.
        """
        live, upper = self.record(model).live, self.upper(model)
        assert isinstance(upper.executor, Chosen), "as for each root of a server"
        root, kept = (live.root, live.root_version), StageProfiles(Layout(self.home.data))
        upper.executor.settle()
        lab = Lab(TokenAdaptation(), upper.executor, root, upper.root.info.shape, upper.root.max_length)
        found = lab.known(kept)
        if found is None:
            found = lab.measure()
            kept.put(*root, found)
        by_key = {BatchKey(root, reads, exact=False): cost_of(found, reads) for reads in READS}
        return by_key.get


@asynccontextmanager
async def opened(
    plan: StagesPlan, home: TaskHome, report: ProgressReport, models: Sequence[ModelId]
) -> AsyncIterator[EngineLab]:
    """Open a home. Before the context opens, each of `models` has answered, its root's executor is chosen,
    and its objective allows no stage. Raises Conflict if a server or another benchmark runs on the folder."""
    async with serving(home.data, models[0], SharedBundles) as found:
        assert isinstance(found.bundles, SharedBundles)
        lab = EngineLab(found, plan, home, report)
        try:
            for model in models:
                lab.agree(model, None)
                await found.ask(model, "first")
                await chosen(found.bundles, lab.record(model).live)
            yield lab
        finally:
            found.bundles.end()


async def at_times(arrivals: Seconds, work: Callable[[int, float], Awaitable[T]]) -> list[T]:
    """Begin each work at its arrival, whether others have ended or not, and return the results in order.

    work: gets its index, and the event loop's time at which it is due.
    """
    loop = asyncio.get_running_loop()
    begun = loop.time()

    async def one(i: int) -> T:
        due = begun + float(arrivals[i])
        await asyncio.sleep(due - loop.time())
        return await work(i, due)

    return await asyncio.gather(*map(one, range(len(arrivals))))


def requests_of(model: ModelId, texts: Sequence[str], name: str, first: int = 0) -> list[TextRequest]:
    """Requests whose ids, and with them all draws, depend on `name` and their place in the stream alone."""
    return [
        TextRequest(model, text, provenance=True, id=f"{name}-{first + i}") for i, text in enumerate(texts)
    ]


def in_order(arms: Mapping[K, T], turn: int) -> list[tuple[K, T]]:
    """The arms, in the opposite order every second turn."""
    return list(arms.items())[:: 1 if turn % 2 else -1]


def seconds_of(answers: Sequence[Answered]) -> Seconds:
    """[texts]: from arrival to answer."""
    return np.array([answer.seconds for answer in answers])


def changes(name: str, base: Seconds, mine: Seconds, goals: Mapping[str, float]) -> Iterator[Figure]:
    """The changes of the latency's median, 95th percentile and mean. goals: the most, for some of these."""
    for figure, of in FIGURES.items():
        a, b = of(base), of(mine)
        about = f"{1e3 * a:.1f} -> {1e3 * b:.1f} ms"
        change = round(b / a - 1, 4)
        yield Figure(
            f"{name}_{figure}_change", change, "of none's", goals.get(figure), False, len(mine), about
        )


async def _answered(engine: Engine, request: TextRequest, since: float) -> Answered:
    (result,) = await engine.infer([request])
    assert result.label is not None, "all tasks are classifications"
    made_by = result.provenance
    assert made_by is not None, "it was asked for"
    seconds = asyncio.get_running_loop().time() - since
    return Answered(result.label, seconds, made_by.layers, made_by.level, result)
