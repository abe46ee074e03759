"""The engine in this process, on a home, with callers that wait for their answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hmi_kernels.encoder import fits

from hmi.api.infer.inference import InferenceEngine
from hmi.api.process.building import build_engine
from hmi.api.process.lock import owning
from hmi.config import Settings
from hmi.core import ModelId, ModelVersion
from hmi.engine import TextRequest, TextResult
from hmi.engine.admit.bundles import Bundles
from hmi.errors import Unavailable
from hmi.execution.choose import REFERENCE
from hmi.manager import Manager
from hmi.metrics import Metrics
from hmi.stores.tensors.adapter_pool import AdapterPool

T = TypeVar("T")
U = TypeVar("U")
CHOICE_POLLS, POLL_S = 2_400, 0.05
"""The number of looks at whether the root's executor is chosen, and the seconds between them. Their product
is the longest wait. Looks are counted, so a pause of the process does not end the wait."""


@dataclass(frozen=True)
class Serving:
    """A running engine, and the parts that it was made of."""

    engine: InferenceEngine
    manager: Manager
    bundles: Bundles
    metrics: Metrics

    @property
    def pool(self) -> AdapterPool[Any]:
        assert isinstance(self.metrics.pool, AdapterPool)
        return self.metrics.pool

    async def ask(self, model: ModelId, text: str) -> TextResult:
        """Ask one model one text."""
        (result,) = await self.engine.infer([TextRequest(model, text)])
        return result

    async def ask_each(self, models: Iterable[ModelId], text: str, at_once: int = 32) -> None:
        """Ask each model the same text, some at once."""
        await by_callers(at_once, models, lambda model: self.ask(model, text))


async def by_callers(callers: int, items: Iterable[T], work: Callable[[T], Awaitable[U]]) -> list[U]:
    """Let callers each do the work of one item after another, and return the results in the items' order."""
    waiting, found = iter(enumerate(items)), dict[int, U]()

    async def caller() -> None:
        for i, item in waiting:
            found[i] = await work(item)

    await asyncio.gather(*(caller() for _ in range(callers)))
    return [found[i] for i in range(len(found))]


@asynccontextmanager
async def serving(
    data: Path, first: ModelId | None, bundles_of: Callable[..., Bundles] = Bundles, **settings: Any
) -> AsyncIterator[Serving]:
    """Run an engine on `data`. Before the context opens, `first`, if it is given, is asked until its
    root's executor is chosen.

    Raises Conflict if a server or another benchmark runs on the folder.
    """
    with owning(data), closing(Manager(Settings(data=data, job_workers=0, **settings))) as manager:
        made: list[Bundles] = []

        def make(*args: Any, **named: Any) -> Bundles:
            made.append(bundles_of(*args, **named))
            return made[0]

        metrics = Metrics()
        engine = build_engine(manager, metrics, make)
        manager.on_deleted = engine.forget
        await engine.start()
        try:
            found = Serving(engine, manager, made[0], metrics)
            if first is not None:
                await found.ask(first, "first")
                await chosen(made[0], manager.registry.model(first).live)
            yield found
        finally:
            await engine.stop()


async def chosen(bundles: Bundles, version: ModelVersion) -> None:
    """Wait until the root's executor has been chosen.

    There is nothing to choose on a device, or if no kernel supports the root's sizes.
    """
    upper = bundles.upper(version).now()
    assert upper is not None, "the root has answered"
    shape, executor, polls = upper.root.info.shape, upper.executor, 0
    while executor.name == REFERENCE and not executor.measured and fits(shape.dim, shape.heads, shape.ffn):
        if polls == CHOICE_POLLS:
            raise Unavailable("no executor was chosen for the root: see the log")
        polls += 1
        await asyncio.sleep(POLL_S)


@dataclass(frozen=True)
class TokenAsk:
    """One text of `tokens` tokens for one model."""

    model: ModelId
    text: str
    tokens: int


@dataclass(frozen=True)
class Load:
    """The answers that callers received in one timed run."""

    answers: int
    tokens: int
    seconds: float
    cpu_s: float
    """CPU seconds of this process."""


async def load(
    serving: Serving, asks: Sequence[TokenAsk], callers: int, seconds: float, a_call: int = 1
) -> Load:
    """Let `callers` ask in turn for `seconds`, or until the first answer, and count what is answered by then.

    Each call has `a_call` of the asks. After the last ask the first one follows.
    """
    loop, at, answered, tokens = asyncio.get_running_loop(), 0, 0, 0
    until = loop.time() + seconds

    async def caller() -> None:
        nonlocal at, answered, tokens
        while loop.time() < until:
            mine, at = [asks[i % len(asks)] for i in range(at, at + a_call)], at + a_call
            await serving.engine.infer([TextRequest(ask.model, ask.text) for ask in mine])
            if loop.time() < until or not answered:
                answered, tokens = answered + a_call, tokens + sum(ask.tokens for ask in mine)

    began, cpu = loop.time(), time.process_time()
    tasks = [asyncio.create_task(caller()) for _ in range(callers)]
    await asyncio.sleep(until - loop.time())
    if not answered:  # a busy machine
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    found = Load(answered, tokens, loop.time() - began, time.process_time() - cpu)
    await asyncio.gather(*tasks)
    return found
