"""The engine's loop: receive, cut a batch, retrieve, run, reply."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import torch

from hmi.config import Settings
from hmi.core import ModelId
from hmi.engine.bundles import Bundles, TaskPart
from hmi.engine.guests import Host, Hosts
from hmi.engine.lines import Lines
from hmi.engine.pace import BATCH_WORK, Pace
from hmi.engine.pipeline import Failed, Retrieved, compute, retrieve
from hmi.engine.preparing import Preparing
from hmi.engine.queue import BatchQueue, Item, Piece, work_in
from hmi.engine.request import InferRequest, InferResult
from hmi.errors import DeadlineExceeded, Unavailable
from hmi.metrics import Metrics
from hmi.model.batching import Encoded
from hmi.model.lexical import word_bags
from hmi.model.packed import nothing
from hmi.model.tagging import best_path, marginals
from hmi.stores.adapter_pool import AdapterPool
from hmi.stores.adapter_store import DamagedArtefact
from hmi.stores.failures import tell
from hmi.stores.miss_recorder import MissRecorder

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ran:
    """A batch that ran, the answers that it completed, and the seconds of its two stages."""

    batch: Retrieved
    answers: list[tuple[Item, InferResult]]
    failed: Failed
    begun: float
    """By `time.monotonic()`."""
    retrieve_s: float
    compute_s: float
    cpu_s: float
    """Of the stream's one thread, in both; as `compute_s` without what guests took."""


class Engine:
    """Answers requests of all tenants: texts are tokenised in turns (`Preparing`), wait in the batch queue, and run in
    `settings.streams` streams of one thread each. A stream cuts its next batch when it is free and not before, so that
    who comes in between waits for one batch at most; of one tenant's batch only for the layer that runs, where its own
    work is shorter (`hmi.engine.guests`).
    """

    def __init__(
        self, bundles: Bundles, settings: Settings, metrics: Metrics, misses: MissRecorder | None = None
    ) -> None:
        self._bundles, self._settings, self._metrics = bundles, settings, metrics
        self._misses = misses
        self._pace = Pace()
        self._queue = BatchQueue(settings.queue_tokens, self._pace, settings.batch_ms / 1e3)
        self._preparing = Preparing(bundles)
        self._pool: AdapterPool[TaskPart] = AdapterPool(settings.pool_bytes, bundles.load_task_part)
        metrics.watch_pool(self._pool)
        self._threads = ThreadPoolExecutor(settings.streams, thread_name_prefix="hmi-engine")
        self._lines = Lines()
        self._hosts = Hosts(settings.streams)
        self._visits: set[asyncio.Task[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._running = 0
        self._accepting = False
        self._ended: Unavailable | None = None
        """What all hear that have not been answered."""

    async def start(self) -> None:
        if self._misses is not None:
            await asyncio.to_thread(self._misses.start)
        # One thread a stream: two streams of one thread beat one of two (docs/design/0004-engine.md).
        torch.set_num_threads(1)
        await asyncio.to_thread(_compile)
        self._preparing.start()
        self._tasks = [asyncio.create_task(self._stream()) for _ in range(self._settings.streams)]
        self._accepting = True

    def ready(self) -> bool:
        return self._accepting

    async def stop(self, drain: bool = True) -> None:
        """Accept nothing more; with `drain` answer what was accepted, else fail it with Unavailable."""
        self._accepting = False
        if not drain:
            self._ended = stopping = Unavailable("the server is stopping; try again shortly", retry_after_s=5)
            self._preparing.fail_all(stopping)
            self._queue.fail_all(stopping)
        while self._running:
            await asyncio.sleep(0.01)
        tasks = [*self._tasks, *self._visits]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._preparing.stop()
        self._threads.shutdown()
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
            async with asyncio.timeout_at(deadline), self._lines.through(requests):
                return await self._answer(requests)
        except TimeoutError as error:
            raise DeadlineExceeded("the deadline passed; the work was dropped") from error
        finally:
            self._running -= 1

    async def _answer(self, requests: Sequence[InferRequest]) -> list[InferResult]:
        if self._ended is not None:  # while it stood in line
            raise self._ended
        # Before anything is done for a call that must be refused then: each text has three tokens at least.
        self._queue.check(Counter({t: 3 * n for t, n in Counter(r.model.tenant for r in requests).items()}))
        prepared = await self._preparing.prepare(requests)
        loop = asyncio.get_running_loop()
        items = [Item(r, b, w, loop.create_future()) for r, (b, w) in zip(requests, prepared, strict=True)]
        self._queue.put(items)
        self._invite()
        try:
            return list(await asyncio.gather(*(i.future for i in items)))
        finally:
            for item in items:
                item.future.cancel()

    async def _stream(self) -> None:
        while True:
            pieces = await self._queue.take(self._settings.max_batch_tokens)
            self._metrics.queue_tokens(self._queue.tokens)
            alone = len({piece.item.request.model.tenant for piece in pieces}) == 1
            with self._hosts.running(self._expected_s(pieces) if alone else 0.0) as host:
                await self._served(pieces, self._in_thread(pieces, host))

    def _invite(self) -> None:
        """Where a batch of one tenant runs, let a small one of who should not wait for all of it in between.

        A batch of several is not interrupted: where many send a little each, batches are to be large.
        """
        host = self._hosts.roomiest()
        pieces = [] if host is None else self._queue.take_guest(self._settings.max_batch_tokens, host.room_s)
        if host is None or not pieces:
            return
        ran = host.receive(lambda: self._batch(pieces, None), self._expected_s(pieces), self._threads)
        visit = asyncio.create_task(self._visit(pieces, ran))
        self._visits.add(visit)
        visit.add_done_callback(self._visits.discard)

    async def _visit(self, pieces: list[Piece], ran: Awaitable[Ran]) -> None:
        await self._served(pieces, ran)
        self._invite()

    async def _served(self, pieces: list[Piece], ran: Awaitable[Ran]) -> None:
        """Reply with what a batch gave, or where it failed as a whole, with what its parts give."""
        try:
            self._reply(await ran)
        except Exception as error:
            await self._one_by_one(pieces, error)

    async def _run(self, pieces: list[Piece]) -> None:
        """A batch that takes no guests."""
        self._reply(await self._in_thread(pieces, None))

    def _in_thread(self, pieces: list[Piece], host: Host | None) -> Awaitable[Ran]:
        return asyncio.get_running_loop().run_in_executor(self._threads, self._batch, pieces, host)

    def _expected_s(self, pieces: list[Piece]) -> float:
        return self._pace.seconds(pieces[0].item.group, work_in(pieces) + BATCH_WORK)

    async def _one_by_one(self, pieces: list[Piece], error: Exception) -> None:
        """After a batch that failed as a whole: run each model's pieces alone, so that only those fail that must."""
        # By model, though several may share an artefact: an error names the model, and is for its tenant alone.
        groups: dict[tuple[ModelId, int], list[Piece]] = {}
        for piece in pieces:
            groups.setdefault((piece.item.request.model, piece.bundle.version.version), []).append(piece)
        for group in groups.values():
            try:
                if len(groups) == 1:
                    raise error
                await self._run(group)
            except Exception as alone:
                _fail([(piece.item, alone) for piece in group])

    def _batch(self, pieces: list[Piece], host: Host | None) -> Ran:
        begun, cpu = time.monotonic(), time.thread_time()
        watch = self._misses.record if self._misses is not None and self._misses.on else None
        with self._pool.lease([p.bundle.version.artefact for p in pieces]) as (parts, broken):
            sound = [p for p in pieces if p.bundle.version.artefact in parts]
            failed = [(p.item, broken[a]) for p in pieces if (a := p.bundle.version.artefact) in broken]
            leased = time.monotonic()
            batch = retrieve(self._bundles, sound, watch)
            retrieved = time.monotonic()
            between = nothing if host is None else host.let_in
            answers, bad = compute(batch, parts, between) if batch.pieces else ([], [])
        retrieve_s = retrieved - leased
        compute_s, cpu_s = time.monotonic() - begun - retrieve_s, time.thread_time() - cpu
        if host is not None:
            compute_s, cpu_s = compute_s - host.away_s, cpu_s - host.away_cpu_s
        return Ran(batch, answers, failed + batch.failed + bad, begun, retrieve_s, compute_s, cpu_s)

    def _reply(self, ran: Ran) -> None:
        if ran.batch.pieces:
            self._answer_all(ran)
        _fail(ran.failed)

    def _answer_all(self, ran: Ran) -> None:
        pieces, tokens = ran.batch.pieces, ran.batch.offsets[-1]
        self._pace.ran(pieces[0].item.group, work_in(pieces), ran.cpu_s)
        self._metrics.stage("retrieve", ran.retrieve_s)
        self._metrics.stage("compute", ran.compute_s)
        self._metrics.batch(len(pieces), tokens)
        for piece, hits in zip(pieces, ran.batch.hits, strict=True):
            self._metrics.plot_hits(piece.bundle.version.domain, hits)
            mine = len(piece.window)
            share = mine * ran.compute_s * 1e3 / tokens
            self._metrics.usage.add(piece.item.request.model.tenant, tokens=mine, compute_ms=share)
        for item in {id(piece.item): piece.item for piece in pieces}.values():
            if "queue_ms" not in item.timing:
                item.timing["queue_ms"] = ran.begun - item.queued
                self._metrics.stage("queue", ran.begun - item.queued)
            item.timing["retrieve_ms"] += ran.retrieve_s
            item.timing["compute_ms"] += ran.compute_s
        for item, answer in ran.answers:
            self._metrics.usage.add(item.request.model.tenant, inputs=1)
            if not item.future.done():
                timing = {name: round(seconds * 1e3, 3) for name, seconds in item.timing.items()}
                item.future.set_result(replace(answer, timing=timing))


def _fail(failed: Failed) -> None:
    """Tell who waits, by the names that they know; and the log once for each version of a model: which artefact, or
    where in the code, where nobody foresaw it."""
    said: dict[str, Exception] = {}
    for item, error in failed:
        if not item.future.done():
            version = f"version {item.bundle.version.version} of model {item.request.model}"
            item.future.set_exception(error.of(version) if isinstance(error, DamagedArtefact) else error)
            said.setdefault(version, error)
    for version, error in said.items():
        tell(log, f"texts for {version} failed", error)


def _compile() -> None:
    """What answers are made with in machine code: now, not while a batch waits."""
    word_bags(["word"], Encoded([1], [0], [0]), 1)
    scores, moves = np.zeros((1, 2), np.float32), np.zeros((3, 2), np.float32)
    best_path(scores, moves)
    marginals(scores, moves)
