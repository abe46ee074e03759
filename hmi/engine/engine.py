"""The engine's loop: candidates, plan, cut, hold, run, reply."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from hmi.config import Settings
from hmi.engine.accounts import Accounts
from hmi.engine.admission import Admission
from hmi.engine.bundles import Bundles, TaskPart
from hmi.engine.in_flight import InFlight
from hmi.engine.interleaving import Host, Hosts
from hmi.engine.isolate import by_model, fail
from hmi.engine.item import Item, Piece, artefacts_of, work_in
from hmi.engine.lines import Lines
from hmi.engine.loading import ModelLoader
from hmi.engine.pace import BATCH_WORK, Pace
from hmi.engine.queue import BatchQueue, Cut
from hmi.engine.request import InferRequest, InferResult
from hmi.engine.running import Held, Ran, Runner
from hmi.engine.sink import Waiting
from hmi.engine.supervisor import Broken, Supervisor
from hmi.engine.threads import contained, in_thread
from hmi.errors import DeadlineExceeded, Unavailable
from hmi.metrics import Metrics
from hmi.model.batching import Encoded
from hmi.model.lexical import word_bags
from hmi.model.tagging import best_path, marginals
from hmi.stages import Measured, Plan, Planner, RoundRobin
from hmi.stages.planner import share_left
from hmi.stores.adapter_pool import AdapterPool
from hmi.stores.failures import tell
from hmi.stores.miss_recorder import MissRecorder

log = logging.getLogger("hmi.engine")
Where = Callable[[Callable[[], Ran]], Awaitable[Ran]]
"""Runs a batch's work on a compute thread."""


class Engine:
    """Answers requests of all tenants.

    Texts are admitted (`Admission`), wait in the batch queue, and run in `settings.streams` streams of one
    thread each. A stream cuts its next batch only when it is free, so a text that arrives in between waits
    for at most one batch. If that batch has a single tenant, a shorter batch waits only for the layer that
    runs (`hmi.engine.interleaving`).
    """

    def __init__(
        self,
        bundles: Bundles,
        settings: Settings,
        metrics: Metrics,
        misses: MissRecorder | None = None,
        planner: Planner | None = None,
    ) -> None:
        self._settings, self._misses = settings, misses
        self._planner: Planner = RoundRobin() if planner is None else planner
        self._accounts = Accounts(metrics)
        self._pace = Pace()
        self._queue = BatchQueue(settings.queue_tokens, self._pace)
        pool: AdapterPool[TaskPart] = AdapterPool(settings.pool_bytes, bundles.load_task_part)
        metrics.watch_pool(pool)
        self._loader = ModelLoader(bundles, pool)
        self._admission = Admission(self._loader)
        self._runner = Runner(self._planner.stages, misses)
        self._threads = _threads(settings.streams)
        self._lines, self._hosts, self._loops = Lines(), Hosts(settings.streams), Supervisor()
        self._interleaved: set[asyncio.Task[None]] = set()
        self._calls = InFlight()
        self._accepting = False
        self._ended: Unavailable | None = None
        """The error for calls that a stop without drain leaves unanswered."""

    async def start(self) -> None:
        if self._misses is not None:
            await asyncio.to_thread(self._misses.start)
        # One thread a stream: two streams of one thread beat one of two (docs/design/0004-engine.md).
        torch.set_num_threads(1)
        await asyncio.to_thread(_compile)
        self._loops.keep("admission", self._admission.run)
        for i in range(self._settings.streams):
            self._loops.keep(f"stream {i + 1}", self._stream)
        self._accepting = True

    def ready(self) -> bool:
        return self._accepting and self._loops.trouble is None

    def trouble(self) -> str | None:
        """Why the started engine is not ready; None if nothing is wrong."""
        return self._loops.trouble

    async def stop(self, drain: bool = True) -> None:
        """Accept no more calls. Those accepted are answered, or without `drain` fail with Unavailable."""
        self._accepting = False
        if not drain:
            self._ended = stopping = Unavailable("the server is stopping; try again shortly", retry_after_s=5)
            self._admission.fail_all(stopping)
            self._queue.fail_all(stopping)
        await self._calls.none()
        await self._loops.stop()
        for task in self._interleaved:
            task.cancel()
        await asyncio.gather(*self._interleaved, return_exceptions=True)
        await self._admission.close()
        await asyncio.to_thread(self._threads.shutdown)
        if self._misses is not None:
            await asyncio.to_thread(self._misses.stop)
        await asyncio.to_thread(self._loader.close)

    async def infer(self, requests: Sequence[InferRequest]) -> list[InferResult]:
        """Answer a call's requests, in their order. Cancelling the call drops the texts that have not begun.

        Raises NotFound, InvalidInput (field: the request's `place`), Unavailable, DeadlineExceeded, Damaged.
        """
        if not self._accepting:
            raise Unavailable("the server is starting or stopping; try again shortly", retry_after_s=2)
        deadline = min((r.deadline for r in requests if r.deadline is not None), default=None)
        with self._calls:
            try:
                # The loop's clock is time.monotonic(), as the deadline's is.
                async with asyncio.timeout_at(deadline) as limit, self._lines.through(requests):
                    results = await self._answer(requests)
            except TimeoutError as error:
                if not limit.expired():  # raised by the work itself, such as a disk that timed out
                    raise
                raise DeadlineExceeded("the deadline passed; the work was dropped") from error
        self._accounts.answered(requests)
        return results

    async def _answer(self, requests: Sequence[InferRequest]) -> list[InferResult]:
        if self._ended is not None:  # while the call stood in line
            raise self._ended
        # Refuse a call before work is spent on it: each text has at least three tokens.
        self._queue.check(Counter({t: 3 * n for t, n in Counter(r.model.tenant for r in requests).items()}))
        admitted = await self._admission.admit(requests)
        sinks = [Waiting() for _ in requests]
        self._queue.put([Item(r, b, w, s) for r, (b, w), s in zip(requests, admitted, sinks, strict=True)])
        try:
            self._interleave()
            return list(await asyncio.gather(*(sink.answer for sink in sinks)))
        finally:
            for sink in sinks:
                sink.drop()

    async def _stream(self) -> None:
        """Plan, cut and run batches, forever."""
        while True:
            await self._queue.wait()
            plan = self._planner.plan(self._queue.candidates(), time.monotonic())
            pieces = self._queue.cut(plan.candidate, self._most(plan, self._settings.batch_ms / 1e3))
            self._accounts.waiting(self._queue.tokens)
            if not pieces:
                continue
            alone = len({piece.item.tenant for piece in pieces}) == 1
            with self._hosts.running(self._expected_s(pieces) if alone else 0.0) as host:
                await self._serve(pieces, plan, self._in_thread, host)

    def _interleave(self) -> None:
        """Start a small batch of other tenants between the layers of a running batch that has one tenant.

        Does nothing if a stream is free, or no host has room. A batch of several tenants is no host: when
        many tenants send a little each, newcomers should make the next batch large.
        """
        host, candidates = self._hosts.roomiest(), self._queue.interleavable()
        if host is None or not candidates:
            return
        try:
            plan = self._planner.plan(candidates, time.monotonic())
            most = self._most(plan, host.room_s, interleaved=True)
        except Exception as error:  # no fault of the call or the batch that led here
            tell(log, "no interleaved batch could be planned", error)
            return
        pieces = self._queue.cut(plan.candidate, most)
        if pieces:
            at_hand = self._loader.in_memory(artefacts_of(pieces))
            host.reserve(self._expected_s(pieces), at_hand)
            task = asyncio.create_task(self._run_interleaved(pieces, plan, host, at_hand))
            self._interleaved.add(task)
            task.add_done_callback(self._interleaved.discard)
            if not at_hand:  # it must load modules first, and leaves the host's place to another batch
                asyncio.get_running_loop().call_soon(self._interleave)

    async def _run_interleaved(self, pieces: list[Piece], plan: Plan, host: Host, at_hand: bool) -> None:
        def between(work: Callable[[], Ran]) -> Awaitable[Ran]:
            return self._begin(lambda: host.run_between(contained(work), self._threads))

        try:
            await self._serve(pieces, plan, between)
        except Broken as error:
            tell(log, "an interleaved batch could not run", error)
        finally:
            if at_hand:
                host.occupied = False
        self._interleave()

    async def _serve(self, pieces: list[Piece], plan: Plan, where: Where, host: Host | None = None) -> None:
        """Run a batch and reply. If it fails as a whole, run it again model by model.

        Every text gets an answer or an error, also if this task is cancelled or the threads have ended.
        """
        try:
            try:
                await self._run(pieces, plan, where, host)
            except Broken:
                raise
            except Exception as error:
                parts = by_model([piece for piece in pieces if piece.item.sink.wanted])
                for part in parts:
                    try:
                        if len(parts) == 1:
                            raise error
                        await self._run(part, plan, self._in_thread, again=True)
                    except Broken:
                        raise
                    except Exception as alone:
                        fail([(piece.item, alone) for piece in part])
        except BaseException:
            ended = self._ended or Unavailable(
                "the work ended before its time; try again shortly", retry_after_s=1
            )
            fail([(piece.item, ended) for piece in pieces])
            raise

    async def _run(
        self, pieces: list[Piece], plan: Plan, where: Where, host: Host | None = None, *, again: bool = False
    ) -> None:
        artefacts = artefacts_of(pieces)
        parts, broken = await self._loader.hold(artefacts, again=again)
        try:
            sound = [piece for piece in pieces if piece.bundle.version.artefact in parts]
            failed = [(p.item, broken[a]) for p in pieces if (a := p.bundle.version.artefact) in broken]
            ran = await where(lambda: self._runner.run(Held(sound, parts, failed), plan, host))
        finally:
            self._loader.let_go(artefacts)
        self._reply(ran, plan)

    def _reply(self, ran: Ran, plan: Plan) -> None:
        pieces, cpu_s = ran.batch.pieces, ran.cpu_s
        if pieces:
            key, share = plan.candidate.key, self._share(plan)
            self._pace.ran(key, work_in(pieces) * share, cpu_s)
            self._accounts.ran(ran, plan)
            for item, answer in ran.answers:
                if item.sink.wanted:  # windows that ran again may complete their text twice
                    item.sink.done(self._accounts.timed(item, answer))
            self._learn(plan, Measured(len(pieces), ran.batch.offsets[-1], cpu_s))
        fail(ran.failed)

    def _learn(self, plan: Plan, measured: Measured) -> None:
        try:
            self._planner.learn(plan, measured)
        except Exception as error:  # the batch has run and must not run again for this
            tell(log, "the planner failed to learn from a batch", error)

    def _in_thread(self, work: Callable[[], Ran]) -> Awaitable[Ran]:
        return self._begin(lambda: in_thread(self._threads, work))

    def _begin(self, begin: Callable[[], Awaitable[Ran]]) -> Awaitable[Ran]:
        """Give work to the compute threads. If they have ended, start new ones and raise Broken."""
        try:
            return begin()
        except RuntimeError as error:
            self._threads = _threads(self._settings.streams)
            raise Broken(f"the compute threads have ended ({error})") from error

    def _expected_s(self, pieces: list[Piece]) -> float:
        return self._pace.seconds(pieces[0].item.key, work_in(pieces) + BATCH_WORK)

    def _most(self, plan: Plan, seconds: float, *, interleaved: bool = False) -> Cut:
        return Cut(seconds, self._settings.max_batch_tokens, self._share(plan), interleaved)

    def _share(self, plan: Plan) -> float:
        return share_left(plan, self._planner.stages)


def _threads(streams: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(streams, thread_name_prefix="hmi-engine")


def _compile() -> None:
    """Compile the functions that answers need, before a batch waits for them."""
    word_bags(["word"], Encoded([1], [0], [0]), 1)
    scores, moves = np.zeros((1, 2), np.float32), np.zeros((3, 2), np.float32)
    best_path(scores, moves)
    marginals(scores, moves)
