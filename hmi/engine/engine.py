"""The engine's loop: receive, cut a batch, retrieve, run, reply."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch

from hmi.config import Settings
from hmi.core import ModelId
from hmi.engine.bundles import Bundle, Bundles, TaskPart
from hmi.engine.pipeline import Retrieved, compute, retrieve
from hmi.engine.queue import BatchQueue, Item
from hmi.engine.request import InferRequest, InferResult
from hmi.errors import DeadlineExceeded, InvalidInput, Unavailable
from hmi.metrics import Metrics
from hmi.model.batching import Encoded
from hmi.model.lexical import word_bags
from hmi.model.tagging import best_path, marginals
from hmi.model.tokenizer import Text
from hmi.model.windows import encode_texts
from hmi.stores.adapter_pool import AdapterPool
from hmi.stores.miss_recorder import MissRecorder

log = logging.getLogger(__name__)
MAX_PREPARING_CHARACTERS = 32 << 20
"""Text that may wait to be tokenised; one call alone is always let in."""


class Engine:
    """Answers requests of all tenants. One retriever feeds `settings.streams` compute streams of one thread each,
    through a channel of one batch, so that batch i+1 is retrieved while batch i computes.
    """

    def __init__(
        self, bundles: Bundles, settings: Settings, metrics: Metrics, misses: MissRecorder | None = None
    ) -> None:
        self._bundles, self._settings, self._metrics = bundles, settings, metrics
        self._misses = misses
        self._queue = BatchQueue(settings.queue_tokens)
        self._pool: AdapterPool[TaskPart] = AdapterPool(settings.pool_bytes, bundles.load_task_part)
        self._channel: asyncio.Queue[Retrieved] = asyncio.Queue(maxsize=1)
        metrics.watch_pool(self._pool)
        self._threads = ThreadPoolExecutor(settings.streams + 1, thread_name_prefix="hmi-engine")
        # Apart: a flood of long texts to tokenise must not hold the threads that batches run on.
        self._tokenising = ThreadPoolExecutor(1, thread_name_prefix="hmi-tokenise")
        self._preparing = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._running = 0
        self._accepting = False

    async def start(self) -> None:
        if self._misses is not None:
            await asyncio.to_thread(self._misses.start)
        # One thread a stream: two streams of one thread beat one of two (docs/design/0004-engine.md).
        torch.set_num_threads(1)
        await asyncio.to_thread(_compile)
        self._tasks = [asyncio.create_task(self._retrieve_forever())]
        self._tasks += [asyncio.create_task(self._compute_forever()) for _ in range(self._settings.streams)]
        self._accepting = True

    def ready(self) -> bool:
        return self._accepting

    async def stop(self, drain: bool = True) -> None:
        """Accept nothing more; with `drain` answer what was accepted, else fail it with Unavailable."""
        self._accepting = False
        if not drain:
            self._queue.fail_all(Unavailable("the server is stopping; try again shortly", retry_after_s=5))
        while self._running:
            await asyncio.sleep(0.01)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._threads.shutdown()
        self._tokenising.shutdown()
        if self._misses is not None:
            await asyncio.to_thread(self._misses.stop)
        self._bundles.close()

    async def infer(self, requests: Sequence[InferRequest]) -> list[InferResult]:
        """Answer all requests, in their order. Cancelling the call drops what has not begun.

        Raises NotFound, InvalidInput (field `inputs[i]…`), Unavailable, DeadlineExceeded.
        """
        if not self._accepting:
            raise Unavailable("the server is starting or stopping; try again shortly", retry_after_s=2)
        self._running += 1
        deadline = min((r.deadline for r in requests if r.deadline is not None), default=None)
        try:
            # The loop's clock is time.monotonic(), as the deadline's is.
            async with asyncio.timeout_at(deadline):
                return await self._answer(requests)
        except TimeoutError as error:
            raise DeadlineExceeded("the deadline passed; the work was dropped") from error
        finally:
            self._running -= 1

    async def _answer(self, requests: Sequence[InferRequest]) -> list[InferResult]:
        loop = asyncio.get_running_loop()
        characters = sum(len(part) for r in requests for part in ((r.text,) if isinstance(r.text, str) else r.text))
        if self._preparing and self._preparing + characters > MAX_PREPARING_CHARACTERS:
            raise Unavailable("overloaded: too much text is waiting; try again shortly", retry_after_s=1)
        self._preparing += characters
        try:
            prepared = await loop.run_in_executor(self._tokenising, self._prepare, list(requests))
        finally:
            self._preparing -= characters
        items = [Item(r, b, w, loop.create_future()) for r, b, w in prepared]
        self._queue.put(items)
        try:
            return list(await asyncio.gather(*(i.future for i in items)))
        finally:
            for item in items:
                item.future.cancel()

    def _prepare(self, requests: list[InferRequest]) -> list[tuple[InferRequest, Bundle, list[Encoded]]]:
        """Pin bundles and tokenise, off the event loop."""
        pinned: dict[ModelId, Bundle] = {}
        out = []
        for i, request in enumerate(requests):
            bundle = pinned.get(request.model) or self._bundles.resolve(request.model)
            pinned[request.model] = bundle
            check_text(request.text, bundle, f"inputs[{i}]")
            out.append((request, bundle, _windows(request.text, bundle)))
        return out

    async def _retrieve_forever(self) -> None:
        while True:
            items = await self._queue.take(self._settings.max_batch_tokens)
            self._metrics.queue_tokens(self._queue.tokens)
            try:
                await self._channel.put(await self._retrieve(items))
            except Exception as error:
                await self._one_by_one(items, lambda i: i.bundle.version.plot_version, error)

    async def _compute_forever(self) -> None:
        while True:
            batch = await self._channel.get()
            try:
                await self._finish(batch)
            except Exception as error:
                await self._one_by_one(batch.items, lambda i: i.bundle.version.artefact, error)

    async def _retrieve(self, items: list[Item]) -> Retrieved:
        begun = time.monotonic()
        watch = self._misses.record if self._misses is not None and self._misses.on else None
        loop = asyncio.get_running_loop()
        batch = await loop.run_in_executor(self._threads, retrieve, self._bundles, items, watch)
        self._metrics.stage("retrieve", time.monotonic() - begun)
        for item, hits in zip(batch.items, batch.hits, strict=True):
            self._metrics.plot_hits(item.bundle.version.domain, hits)
        return batch

    async def _finish(self, batch: Retrieved) -> None:
        begun = time.monotonic()
        answers = await asyncio.get_running_loop().run_in_executor(self._threads, self._compute, batch)
        self._reply(batch, answers, begun)

    async def _one_by_one(self, items: list[Item], part: Callable[[Item], str], error: Exception) -> None:
        """After a failed batch: run each part's items alone, so that one damaged part fails nobody else's texts."""
        groups: dict[str, list[Item]] = {}
        for item in items:
            groups.setdefault(part(item), []).append(item)
        for group in groups.values():
            try:
                if len(groups) == 1:
                    raise error
                await self._finish(await self._retrieve(group))
            except Exception as alone:
                _fail(group, alone)

    def _compute(self, batch: Retrieved) -> list[InferResult]:
        names = [i.bundle.version.artefact for i in batch.items]
        with self._pool.lease(names) as parts:
            return compute(batch, parts)

    def _reply(self, batch: Retrieved, answers: list[InferResult], begun: float) -> None:
        now = time.monotonic()
        self._metrics.stage("compute", now - begun)
        self._metrics.batch(len(batch.items), batch.offsets[-1])
        ms_a_token = (now - begun) * 1e3 / batch.offsets[-1]
        for item, answer in zip(batch.items, answers, strict=True):
            tokens, tenant = item.tokens, item.request.model.tenant
            self._metrics.stage("queue", batch.begun - item.queued)
            self._metrics.usage.add(tenant, inputs=1, tokens=tokens, compute_ms=tokens * ms_a_token)
            if not item.future.done():
                timing = {"queue_ms": batch.begun - item.queued, "retrieve_ms": batch.took, "compute_ms": now - begun}
                item.future.set_result(replace(answer, timing={k: round(v * 1e3, 3) for k, v in timing.items()}))


def _windows(text: Text, bundle: Bundle) -> list[Encoded]:
    length, windows = bundle.version.max_length, bundle.task.rules.windows
    (found,) = encode_texts(bundle.root.tokenizer, [text], length, windows=windows)
    return found


def check_text(text: Text, bundle: Bundle, field: str) -> None:
    """Raise InvalidInput where the input's kind does not fit the model's task or the text is empty."""
    wanted, called = bundle.task.form
    if not isinstance(text, wanted):
        task = bundle.version.task
        article = "an" if task == "embedding" else "a"
        raise InvalidInput(f"{bundle.model} is {article} {task} model: give {called} in {field}", field=field)
    parts = [text] if isinstance(text, str) else list(text)
    if not parts or not all(p.strip() for p in parts):
        raise InvalidInput(f"{field} is empty: give some text", field=field)


def _fail(items: list[Item], error: Exception) -> None:
    log.error("a batch of %d failed", len(items), exc_info=error)
    for item in items:
        if not item.future.done():
            item.future.set_exception(error)


def _compile() -> None:
    """What answers are made with in machine code: now, not while a batch waits."""
    word_bags(["word"], Encoded([1], [0], [0]), 1)
    scores, moves = np.zeros((1, 2), np.float32), np.zeros((3, 2), np.float32)
    best_path(scores, moves)
    marginals(scores, moves)
