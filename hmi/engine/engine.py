"""The engine's loop: candidates, plan, cut, hold, run, reply."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from dataclasses import replace
from functools import partial

import torch

from hmi.config import Settings
from hmi.core import DeletedParts, ModelId
from hmi.engine.adaptive.levels import Admitted, Levels
from hmi.engine.adaptive.planners import planner_of
from hmi.engine.adaptive.planning import Planning
from hmi.engine.admit.admission import Admission
from hmi.engine.admit.bundles import Bundles, TaskPart
from hmi.engine.admit.loading import ModelLoader
from hmi.engine.admit.one_large_call import Lines
from hmi.engine.run.accounts import Accounts
from hmi.engine.run.compute import Compute
from hmi.engine.run.early import EarlyAnswers
from hmi.engine.run.isolate import audit_again, by_model, fail
from hmi.engine.run.running import Cut, Held, Ran, Runner
from hmi.engine.run.side_batches import Hosts, MainBatch
from hmi.engine.run.warming import compile_answers
from hmi.engine.schedule.limits import BatchLimits
from hmi.engine.schedule.pace import BATCH_WORK, Pace
from hmi.engine.schedule.queue import FEW_TENANTS, BatchQueue
from hmi.engine.schedule.waiting import WaitingTexts
from hmi.engine.texts.item import Item, artefacts_of, work_in
from hmi.engine.texts.request import TextRequest, TextResult
from hmi.engine.texts.sink import CallSink
from hmi.engine.watch.in_flight import InFlight
from hmi.engine.watch.supervisor import Broken, Supervisor
from hmi.engine.watch.tracing import add_spans
from hmi.engine.writing.pieces import Pieces
from hmi.engine.writing.request import WriteRequest, WrittenPieces
from hmi.engine.writing.right_of_way import RightOfWay
from hmi.engine.writing.writers import Write, Writers
from hmi.errors import DeadlineExceeded, HmiError, Unavailable
from hmi.metrics import Metrics
from hmi.model.memory import usable_memory
from hmi.stages.cascade.report import CascadeReport
from hmi.stages.cascade.stage import CascadeInside
from hmi.stages.early_exit.stage import EarlyExit
from hmi.stages.planner import Candidate, Planner
from hmi.stages.planning.group import GroupLimits
from hmi.stages.token_adaptation.stage import TokenAdaptation
from hmi.stores.failures import log_failure
from hmi.stores.layout import Layout
from hmi.stores.plot.miss_recorder import MissRecorder
from hmi.stores.tensors.adapter_pool import AdapterPool, NoRoom

log = logging.getLogger("hmi.engine")
LONE_TURNS = 2
"""A batch may take this many turns while no other tenant's texts wait: newcomers run beside it."""
LATE = "the deadline passed; the work was dropped"
EXPRESS_TURNS = 1 / 4
"""An express batch of several windows takes at most this part of a turn: a third tenant's may wait for it."""


class Engine:
    """Answers requests of all tenants.

    Texts are admitted (`Admission`), wait in the batch queue, and run in `settings.streams` streams of one
    thread each. A stream cuts its next batch only when it is free, so a text that arrives in between waits
    for at most one batch. If that batch has few tenants, a shorter batch of another runs beside it
    (`hmi.engine.run.side_batches`).
    """

    def __init__(
        self,
        bundles: Bundles,
        settings: Settings,
        metrics: Metrics,
        misses: MissRecorder | None = None,
        planner: Planner | None = None,
    ) -> None:
        self._settings, self._misses, self._cascades = settings, misses, settings.runs("cascades")
        layout = Layout(settings.data)
        chosen, costs = planner_of(settings, layout) if planner is None else (planner, None)
        self._planning = Planning(chosen, costs)
        metrics.watch_plans(lambda: self._planning.totals)
        self.exits = next((s for s in chosen.stages if isinstance(s, EarlyExit)), None)
        """The stage of early exits, with reports and late labels; None if the planner has none."""
        self.tokens = next((s for s in chosen.stages if isinstance(s, TokenAdaptation)), None)
        if self.tokens is not None:
            metrics.watch_token_audits(self.tokens.totals)
        self._inside = next((s for s in chosen.stages if isinstance(s, CascadeInside)), None)
        self._accounts = Accounts(metrics)
        self._pace = Pace()
        self._queue = BatchQueue(
            settings.queue_tokens,
            self._pace,
            longest_s=settings.queue_s,
            streams=settings.streams,
            weight_of=bundles.weight,
            price=self._planning.price,
            limits=GroupLimits(seconds=settings.batch_ms / 1e3),
        )
        limit = settings.pool_bytes or usable_memory() // 4
        pool: AdapterPool[TaskPart] = AdapterPool(
            limit, bundles.load_task_part, lambda part: part.size, bundles.mark
        )
        metrics.watch_pool(pool, limit)
        self._waiting = WaitingTexts()
        metrics.watch_queue(lambda: self._queue.tokens, self._waiting.seen, settings.streams)
        self._loader, self._warm = ModelLoader(bundles, pool), bundles.warm
        self._admission = Admission(self._loader)
        cores = os.cpu_count() or 1  # two of them may be one physical core
        self._way = RightOfWay(needed=cores < 2 * (settings.streams + 1))
        self._writers = Writers(self._loader, metrics, misses, self._way, settings.queue_tokens)
        counted, kept = self._accounts.cascaded, layout.cascades("two") if planner is None else None
        self._levels = Levels(self._admission, self._ask, bundles.record, counted, kept)
        self._runner, self._compute = Runner(chosen.stages, misses), Compute(settings.streams)
        self._lines, self._hosts, self._loops = Lines(), Hosts(settings.streams), Supervisor()
        self._express: set[asyncio.Task[None]] = set()
        self._calls, self._accepting = InFlight(), False
        self._ended: Unavailable | None = None
        """The error for calls that a stop without drain leaves unanswered."""

    async def start(self) -> None:
        if self._misses is not None:
            await asyncio.to_thread(self._misses.start)
        # One thread a stream: two streams of one thread beat one of two (docs/design/0004-engine.md).
        torch.set_num_threads(1)
        await asyncio.to_thread(compile_answers)
        await asyncio.to_thread(self._warm)
        self._loops.keep("admission", self._admission.run)
        for i in range(self._settings.streams):
            self._loops.keep(f"stream {i + 1}", self._stream)
        self._loops.keep("writing", self._writers.run)
        self._accepting = True

    def ready(self) -> bool:
        return self._accepting and self._loops.trouble is None

    def trouble(self) -> str | None:
        """Why the started engine is not ready; None if nothing is wrong."""
        return self._loops.trouble

    async def stop(self, drain: bool = True) -> None:
        """Accept no more calls. Accepted calls are answered; without `drain` they fail with Unavailable."""
        self._accepting = False
        if not drain:
            self._ended = stopping = Unavailable("the server is stopping; try again shortly", retry_after_s=5)
            self._admission.fail_all(stopping)
            self._queue.fail_all(stopping)
            self._writers.fail_all(stopping)
        await self._calls.none()
        await self._levels.close()
        await self._loops.stop()
        for task in self._express:
            task.cancel()
        await asyncio.gather(*self._express, return_exceptions=True)
        await self._admission.close()
        await self._compute.close()
        await self._writers.close()
        if self._misses is not None:
            await asyncio.to_thread(self._misses.stop)
        for stage in (self.exits, self._inside, self._planning):
            await asyncio.to_thread(stage.close if stage is not None else lambda: None)
        await asyncio.to_thread(self._loader.close)

    def wait_s(self, tenant: str | None) -> float:
        """Predicted seconds that a text of the tenant would wait; that all which wait take, for None."""
        return self._queue.wait_s(tenant)

    async def load(self, models: Sequence[ModelId]) -> int:
        """Load models before their first texts come. Returns how many could be loaded."""
        loaded = 0
        for model in models:
            with suppress(HmiError):
                if not self._accepting:
                    break
                await self._loader.load_any(model)
                loaded += 1
        return loaded

    def forget(self, gone: DeletedParts) -> None:
        """Free the memory of what has been deleted, except what requests in flight use. For any thread."""
        self._writers.forget(gone)
        self._loader.forget(gone.artefacts, gone.roots, gone.plots)
        for stage in (self.exits, self.tokens):
            if stage is not None:
                stage.forget(gone.artefacts, gone.models)
        for keeper in (self._inside, self._levels):
            if keeper is not None:
                keeper.forget(gone.artefacts)

    def cascade_report(
        self, model: ModelId, artefact: str, small_artefact: str, agreement: float | None
    ) -> CascadeReport | None:
        """See `Levels.report`; of a cascade inside one root if no small level is named."""
        keeper = self._levels if small_artefact else self._inside
        return None if keeper is None else keeper.report(model, artefact, small_artefact, agreement)

    @contextmanager
    def admitted(
        self, wants: Sequence[WriteRequest]
    ) -> Iterator[Callable[[WriteRequest], AbstractAsyncContextManager[WrittenPieces]]]:
        """Context manager: a call of one model is under way in the block, which gets what lets its texts be
        written. They are admitted together.

        Raises QuotaExceeded (the tenant has too much waiting, and some of it is of other calls), Unavailable.
        """
        self._check_accepting()
        with self._calls, self._writers.admitted(wants) as write:
            yield partial(self._write, write)

    @asynccontextmanager
    async def _write(self, write: Write, request: WriteRequest) -> AsyncIterator[WrittenPieces]:
        """Context manager: a text is being written in the block. Leaving the block early drops it.

        Of the texts of one call only the first, of index 0, counts as a request.

        Raises NotFound, InvalidInput (names the request's field), Unavailable, DeadlineExceeded, Damaged.
        """
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout_at(request.deadline) as limit:
                    pieces = await stack.enter_async_context(write(request))
            except TimeoutError as error:
                raise self._late(error, limit) from error
            # From here on the reader gets the error in place of the next piece: a stream is open by then.
            if request.deadline is not None:
                late = loop.call_at(request.deadline, self._miss, pieces)
                stack.callback(late.cancel)
            try:
                yield pieces
            finally:
                if not (request.index or isinstance(pieces.outcome, Exception)):
                    self._accounts.answered([request])

    def _miss(self, pieces: Pieces) -> None:
        """End a text whose deadline has passed, unless it is whole."""
        if pieces.outcome is None:
            self._accounts.missed()
            pieces.send(DeadlineExceeded(LATE))

    def _check_accepting(self) -> None:
        if not self._accepting:
            raise Unavailable("the server is starting or stopping; try again shortly", retry_after_s=2)

    def _late(self, error: TimeoutError, limit: asyncio.Timeout) -> Exception:
        """The error of a call whose deadline passed; the same one if the work itself raised it, such as a
        disk that timed out."""
        if not limit.expired():
            return error
        self._accounts.missed()
        return DeadlineExceeded(LATE)

    async def infer(self, requests: Sequence[TextRequest]) -> list[TextResult]:
        """Answer a call's requests, in their order. Cancelling the call drops the texts that have not begun.

        Raises NotFound, InvalidInput (field: the request's `place`), QuotaExceeded (a tenant has too much
        waiting), Unavailable, DeadlineExceeded, Damaged.
        """
        self._check_accepting()
        deadline = min((r.deadline for r in requests if r.deadline is not None), default=None)
        with self._calls:
            try:
                # The loop's clock is time.monotonic(), as the deadline's is.
                async with asyncio.timeout_at(deadline) as limit, self._lines.through(requests):
                    with self._way:
                        results = await self._answer(requests)
            except TimeoutError as error:
                raise self._late(error, limit) from error
            except DeadlineExceeded:  # dropped by the queue, before any work
                self._accounts.missed()
                raise
        self._accounts.answered(requests)
        return results

    async def _answer(self, requests: Sequence[TextRequest]) -> list[TextResult]:
        if self._ended is not None:  # while the call stood in line
            raise self._ended
        # Refuse a call before work is spent on it: each text has at least three tokens.
        self._queue.check(Counter({t: 3 * n for t, n in Counter(r.model.tenant for r in requests).items()}))
        admitted = await self._admission.admit(requests)
        cascade = self._cascades and any(each.bundle.cascade is not None for each in admitted)
        return await (self._levels.answer if cascade else self._ask)(requests, admitted)

    async def _ask(self, requests: Sequence[TextRequest], admitted: Sequence[Admitted]) -> list[TextResult]:
        """Run admitted texts, and return their answers in their order."""
        answers = CallSink(len(requests))
        texts = zip(requests, admitted, answers.sinks, strict=True)
        items = [Item(r, a.bundle, a.windows, sink, a.split) for r, a, sink in texts]
        self._planning.look_at(items)
        with self._loader.needing([each.bundle.version.artefact for each in admitted]):
            self._queue.put(items)
            self._waiting.add(items)
            try:
                self._start_express()
                return add_spans(items, await answers.all())
            finally:
                self._waiting.remove(items)
                answers.drop()
                self._queue.drop(items)

    async def _stream(self) -> None:
        """Plan, cut and run batches, forever."""
        while True:
            await self._queue.wait()
            turn_s = self._settings.batch_ms / 1e3
            turns = LONE_TURNS if self._queue.tenants == 1 else 1
            limits = BatchLimits(turns * turn_s, self._settings.max_batch_tokens)
            batch = self._cut(self._queue.candidates(), limits)
            if not batch.pieces:
                continue
            few = len({piece.item.tenant for piece in batch.pieces}) <= FEW_TENANTS
            # A host is delayed by at most its own time, or one turn if that is longer.
            with self._hosts.running(max(self._expected_s(batch), turn_s) if few else 0.0):
                self._start_express()
                await self._serve(batch)
            del batch  # or its calls, and their models, would stay in memory until another batch comes

    def _cut(self, candidates: Sequence[Candidate], limits: BatchLimits) -> Cut:
        """Let the planner choose, and cut its batch."""
        plan, left = self._planning.plan(self._queue, candidates)
        pieces = self._queue.cut(plan.candidate, limits.of(plan.candidate.key, left), plan.group)
        self._planning.decided(plan, pieces)
        return Cut(pieces, plan, left)

    def _start_express(self) -> None:
        """Start a small batch beside a running one of few tenants, unless a stream is free.

        A text whose module is not in memory is left out. The first such module is loaded, and then its text
        may be in an express batch.
        """
        host = self._hosts.roomiest()
        if host is None:
            return
        absent: list[Item] = []
        try:
            batch = self._cut_express(host, absent)
        except Exception as error:  # no fault of the call or the batch that led here
            log_failure(log, "no express batch could be planned", error)
            return
        if batch is not None:
            self._hosts.begin(host, self._expected_s(batch))
            task = asyncio.create_task(self._run_express(batch, host))
            self._express.add(task)
            task.add_done_callback(self._express.discard)
        if absent:
            with suppress(RuntimeError):  # no thread can start: the batch that uses the module loads it
                self._loader.prefetch(absent[0].bundle, self._start_express)

    def _cut_express(self, host: MainBatch, absent: list[Item]) -> Cut | None:
        """Cut a batch that fits beside `host`, of the first key that has one; None if no key has.

        absent: receives the items that were left out because their modules are not in memory.
        """

        def at_hand(item: Item) -> bool:
            found = self._loader.in_memory(item.bundle)
            if not found:
                absent.append(item)
            return found

        limits = BatchLimits(
            host.room_s,
            self._settings.max_batch_tokens,
            express=True,
            at_hand=at_hand,
            several_s=EXPRESS_TURNS * self._settings.batch_ms / 1e3,
        )
        candidates = self._queue.express_candidates()
        while candidates:
            batch = self._cut(candidates, limits)
            if batch.pieces:
                return batch
            candidates.remove(batch.plan.candidate)  # its texts are too long, or wait for their modules
        return None

    async def _run_express(self, batch: Cut, host: MainBatch) -> None:
        try:
            await self._serve(batch, express=True)
        except Broken as error:
            log_failure(log, "an express batch could not run", error)
            host.room_s = 0.0  # the next beside it would fail, too
            return
        finally:
            self._hosts.end()
        self._start_express()

    async def _serve(self, batch: Cut, *, express: bool = False) -> None:
        """Run a batch and reply. If it fails as a whole, run it again model by model.

        Every text gets an answer or an error, also if this task is cancelled or the threads have ended.
        """
        try:
            try:
                await self._run(batch, express=express)
            except Broken:
                raise
            except Exception as error:
                await self._run_apart(batch, error, express=express)
        except BaseException:
            ended = self._ended or Unavailable(
                "the work ended before its time; try again shortly", retry_after_s=1
            )
            fail([(piece.item, ended) for piece in batch.pieces])
            raise

    async def _run_apart(self, batch: Cut, error: Exception, *, express: bool) -> None:
        """Run a batch that failed again, without adaptive stages and model by model, if that is a change."""
        groups = by_model([piece for piece in batch.pieces if piece.item.sink.wanted])
        plan = self._planning.without_adaptation(batch.plan, error)
        if len(by_model(batch.pieces)) == 1 and plan is batch.plan:
            fail([(piece.item, error) for group in groups for piece in group])
            groups = []
        run = partial(self._run, express=express, again=True)
        for group in groups:
            try:
                await run(replace(batch, pieces=group, plan=plan))
            except Broken:
                raise
            except Exception as alone:
                fail([(piece.item, alone) for piece in group])
        await audit_again([s.owed for s in (self.exits, self._inside) if s], replace(batch, plan=plan), run)

    async def _run(self, batch: Cut, *, express: bool = False, again: bool = False) -> None:
        """Run a batch, in several parts if its modules do not fit into the pool together."""
        left = batch.pieces
        while left:
            artefacts = artefacts_of(left)
            parts, broken = await self._loader.hold(artefacts, left[0].bundle.executor, again=again)
            later = [p for p in left if isinstance(broken.get(p.bundle.version.artefact), NoRoom)]
            for piece in later:
                broken.pop(piece.bundle.version.artefact, None)
            try:
                sound = [p for p in left if p.bundle.version.artefact in parts]
                failed = [(p.item, broken[a]) for p in left if (a := p.bundle.version.artefact) in broken]
                held = Held(sound, parts, failed)
                early = EarlyAnswers()
                run = partial(self._runner.run, held, batch.plan, early)
                try:
                    ran = await self._compute.run(run, express=express)
                except BaseException:  # also if the engine stops: then audits may still be under way
                    self._accounts.answered_early(early.items)
                    raise
            finally:
                self._loader.let_go(artefacts)
            self._reply(ran, batch)
            left, again = later, True

    def _reply(self, ran: Ran, batch: Cut) -> None:
        pieces, cpu_s = ran.batch.pieces, ran.cpu_s
        if pieces:
            if share := ran.share:  # of a batch whose layers did not run there is nothing to learn
                self._pace.ran(batch.plan.candidate.key, work_in(pieces) * batch.work_left * share, cpu_s)
            self._accounts.ran(ran)
            self._queue.give_back(batch.plan.candidate.key, ran.skipped, batch.work_left)
            for item, answer in ran.answers:
                if item.sink.wanted:  # windows that ran again may complete their text twice
                    answer.timing.update(item.timing)
                    item.sink.done(answer)
            self._planning.learn(batch.plan, pieces, ran.batch.offsets[-1], cpu_s, ran.wall_s)
        fail(ran.failed)

    def _expected_s(self, batch: Cut) -> float:
        key, left = batch.plan.candidate.key, work_in(batch.pieces) * batch.work_left
        return self._pace.seconds(key, left + BATCH_WORK)
