"""Parts of the engine by themselves: the model loader, items, batches from the queue, admission."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from hmi.core import ModelId
from hmi.engine import TextRequest
from hmi.engine.admit.admission import Admission
from hmi.engine.admit.bundles import Bundle, TaskPart
from hmi.engine.admit.loading import ModelLoader
from hmi.engine.schedule.limits import BatchLimits
from hmi.engine.schedule.queue import BatchQueue
from hmi.engine.texts.item import Item, Piece
from hmi.engine.texts.request import TextResult
from hmi.engine.watch.supervisor import Supervisor
from hmi.stages.planner import RoundRobin
from hmi.stores.tensors.adapter_pool import AdapterPool
from tests.e2e.conftest import Home

FOR_EVER = 1e9


class Kept:
    """A sink that keeps its results and errors."""

    def __init__(self) -> None:
        self.wanted = True
        self.results: list[TextResult] = []
        self.errors: list[Exception] = []

    def done(self, result: TextResult) -> None:
        self.results.append(result)
        self.wanted = False

    def fail(self, error: Exception) -> None:
        self.errors.append(error)
        self.wanted = False


def loader_of(home: Home) -> ModelLoader:
    bundles = home.bundles()
    pool: AdapterPool[TaskPart] = AdapterPool(1 << 28, bundles.load_task_part, lambda p: p.size)
    return ModelLoader(bundles, pool)


async def bundle_of(home: Home, model: ModelId, *, exact: bool = False) -> Bundle:
    loader = loader_of(home)
    try:
        return await loader.load(model, exact=exact)
    finally:
        loader.close()


async def items(home: Home, model: ModelId, texts: Sequence[str], exact: bool = False) -> list[Item]:
    """Queue items as the engine creates them."""
    bundle = await bundle_of(home, model, exact=exact)
    encoded = bundle.root.tokenizer.encode(texts, 64)
    return [
        Item(TextRequest(model, t, exact=exact), bundle, [e], Kept())
        for t, e in zip(texts, encoded, strict=True)
    ]


def take(queue: BatchQueue, tokens: int, seconds: float = FOR_EVER) -> list[Piece]:
    """The next batch, cut as a stream cuts it."""
    return queue.cut(RoundRobin().plan(queue.candidates(), 0.0).candidate, BatchLimits(seconds, tokens))


def take_express(queue: BatchQueue, tokens: int, seconds: float = FOR_EVER) -> list[Piece]:
    """The next batch that may run beside the last one."""
    candidates = queue.express_candidates()
    return queue.cut(min(candidates), BatchLimits(seconds, tokens, express=True)) if candidates else []


@asynccontextmanager
async def admitting(loader: ModelLoader, *, later: asyncio.Event | None = None) -> AsyncIterator[Admission]:
    """A running admission; with `later`, it runs from the moment that `later` is set."""
    admission, loops = Admission(loader), Supervisor()

    async def run() -> None:
        if later is not None:
            await later.wait()
        await admission.run()

    loops.keep("admission", run)
    try:
        yield admission
    finally:
        await loops.stop()
        await admission.close()
        loader.close()
