"""The run of one batch on a compute thread: retrieval, upper layers with hooks, heads, answers.

Nothing here knows of the event loop or of futures.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate

import torch

from hmi.engine.admit.bundles import TaskPart
from hmi.engine.run.answers import answer_of
from hmi.engine.run.heads import outputs_of
from hmi.engine.run.hooked import Hooked
from hmi.engine.run.novelty import note_similarity
from hmi.engine.run.ramps import BatchTexts, attention_of, prompts_of, ramps_of, stretches_of
from hmi.engine.run.retrieval import Failed, Retrieved, retrieve
from hmi.engine.texts.item import Item, Piece, Times
from hmi.engine.texts.request import TextResult
from hmi.execution import BatchKey, Left, Rows, trace
from hmi.execution.base import Output
from hmi.stages.base import Stage, StageBatch
from hmi.stages.early_exit.costs import relative
from hmi.stages.planner import Plan
from hmi.stores.failures import log_failure
from hmi.stores.plot.miss_recorder import MissRecorder

log = logging.getLogger("hmi.engine")
Early = Callable[[list[tuple[Item, TextResult]]], None]
"""Takes answers of texts that left before their batch ended, with their timing."""
Outcome = tuple[Item, TextResult | Exception]
"""A text, with its answer or the error that it has instead."""


@dataclass(frozen=True)
class Cut:
    """A batch that was cut from the queue."""

    pieces: list[Piece]
    plan: Plan
    work_left: float
    """The fraction of the layers' work that the plan's stages are expected to leave."""


@dataclass(frozen=True)
class Held:
    """A batch whose modules are in memory."""

    pieces: list[Piece]
    parts: Mapping[str, TaskPart]
    """By artefact."""
    failed: Failed
    """The texts whose modules could not be loaded; their pieces are not in `pieces`."""


@dataclass(frozen=True)
class Ran:
    """A batch that has run, the answers that it completed, and its times."""

    batch: Retrieved
    answers: list[tuple[Item, TextResult]]
    failed: Failed
    times: Times
    early: list[Item]
    """The texts whose answers were handed on before the batch had ended."""
    stages: Sequence[Mapping[str, str]]
    """The setting of each stage that concerned a window, by window of the batch."""
    layers: Sequence[int]
    """The upper layers that a window went through, by window of the batch."""
    cpu_s: float
    """CPU seconds of the compute thread, and seconds that it slept until a device had computed the batch."""

    @cached_property
    def work(self) -> list[tuple[float, float]]:
        """Two works of each window: that of the upper layers that ran for it, and that of all. A work is
        tokens times layers, each layer weighed by its time relative to others (`relative`).
        """
        pieces = self.batch.pieces
        up_to = _up_to(pieces[0].item.key, pieces[0].bundle.executor.layers)
        pairs = zip(pieces, self.layers, strict=True)
        return [(len(p.window) * up_to[layers], len(p.window) * up_to[-1]) for p, layers in pairs]

    @property
    def wall_s(self) -> float:
        """Seconds that the batch took."""
        return self.times.retrieve_s + self.times.compute_s

    @property
    def skipped(self) -> list[tuple[Piece, float]]:
        """The windows that left early, each with the part of its layers' work that did not run."""
        pairs = zip(self.batch.pieces, self.work, strict=True)
        return [(piece, 1.0 - done / whole) for piece, (done, whole) in pairs if done < whole]

    @property
    def share(self) -> float:
        """The part of the time that the batch would have taken if no text had left early; 1 if none did."""
        ran, whole = map(sum, zip(*self.work, strict=True))
        if ran == whole or ran == 0.0:
            return float(ran == whole)
        return self.wall_s / (self.times.retrieve_s + self.times.compute_s * whole / ran)


@lru_cache(maxsize=256)
def _up_to(key: BatchKey, layers: int) -> tuple[float, ...]:
    """[layers + 1]: the times of the layers before each, relative to one."""
    return (0.0, *accumulate(relative(key, layers).tolist()))


class Runner:
    """Runs batches on the calling thread."""

    def __init__(self, stages: Sequence[Stage], misses: MissRecorder | None) -> None:
        self._stages, self._misses = {stage.name: stage for stage in stages}, misses

    @torch.inference_mode()
    def run(self, held: Held, plan: Plan, early: Early = lambda _: None) -> Ran:
        """Run a batch. `early` receives answers as soon as they are there; `Ran.answers` has all."""
        times, cpu = Times(time.monotonic()), time.thread_time()
        _prefetch(held, plan)
        with trace.span("retrieve"):
            batch = retrieve(held.pieces)
        times.retrieve_s = time.monotonic() - times.begun
        answers: list[tuple[Item, TextResult]] = []
        gone: list[Item] = []
        failed = [*held.failed, *batch.failed]
        parts = [held.parts[p.bundle.version.artefact] for p in batch.pieces]
        note_similarity(batch, parts)
        with Hooked(len(parts)) as hooked:
            key = plan.candidate.key
            if key.bits:
                hooked.mark("shards", f"{key.bits} bits")
            if parts and len(batch.pieces[0].bundle.root.upper):  # stages know nothing of streamed layers
                self._hook(hooked, batch, parts, plan)
            running = Running(batch, parts, plan.candidate.key, hooked, times, [0] * len(parts))
            for outcomes, ended in running.outcomes() if batch.pieces else ():
                found = [(i, o) for i, o in outcomes if not isinstance(o, Exception)]
                failed += [(i, o) for i, o in outcomes if isinstance(o, Exception)]
                answers += found
                if found and not ended:
                    for item, answer in found:
                        answer.timing.update(item.timing)
                    early(found)
                    gone += [item for item, _ in found]
        _set_compute_time(times)
        cpu_s = time.thread_time() - cpu + times.waited_s
        self._record(batch)
        return Ran(batch, answers, failed, times, gone, hooked.stages, running.layers, cpu_s)

    def _record(self, batch: Retrieved) -> None:
        """Record the batch's misses. Answers are worth more than their record: a failure is logged."""
        try:
            if self._misses is not None and self._misses.on:
                batch.record(self._misses)
        except Exception as error:
            log_failure(log, "the misses of a batch could not be recorded", error)

    def _hook(self, hooked: Hooked, batch: Retrieved, parts: Sequence[TaskPart], plan: Plan) -> None:
        """Put the hooks of this batch into `hooked`."""
        on = plan.on
        if not on:
            return
        key, pieces = plan.candidate.key, batch.pieces
        objectives = [piece.item.objective for piece in pieces]
        texts, ramps, attention = (
            BatchTexts(pieces, parts),
            ramps_of(key, pieces, parts),
            attention_of(pieces, parts),
        )
        versions = [(b.model, b.version, b.cascade) for b in (piece.bundle for piece in pieces)]
        about = StageBatch(
            key,
            plan.candidate.layers,
            texts,
            ramps,
            objectives,
            attention,
            versions,
            tokens=[len(piece.window) for piece in pieces],
            stretches=stretches_of(pieces),
            prompts=prompts_of(pieces, parts),
        )
        for name, setting in on.items():
            hooked.add(name, setting, self._stages[name].hooks(setting, about))


@dataclass(frozen=True)
class Running:
    """A batch on its way through the upper layers."""

    batch: Retrieved
    parts: Sequence[TaskPart]
    """The modules and heads, by piece of the batch."""
    key: BatchKey
    hooked: Hooked
    times: Times
    layers: list[int]
    """The upper layers that a piece went through, by piece."""

    def outcomes(self) -> Iterator[tuple[list[Outcome], bool]]:
        """Run the upper layers, and the head of each text as soon as the text has left them.

        Yields texts that leave together, and whether they went through all layers. Rows of different texts
        never mix, so a NaN stays in its own text.
        """
        batch, times = self.batch, self.times
        rows, executor = Rows.packed(batch.rows, batch.offsets), batch.pieces[0].bundle.executor
        waiting = set(range(len(batch.pieces)))
        for left in executor.run(self.key, rows, [p.module for p in self.parts], self.hooked.hooks):
            for text in left.texts:
                self.layers[text] = left.after
            times.waited_s += left.waited_s
            with trace.span("heads"):
                outputs = outputs_of(left, batch.pieces, self.parts)
            if left.why == "end":
                outputs = self.hooked.ended(left.texts, outputs)
            _set_compute_time(times)
            yield list(self._of(left, outputs, waiting)), left.why == "end"
        if waiting:
            lost = RuntimeError("a text was lost between layers")
            yield [(batch.pieces[text].item, lost) for text in waiting], True

    def _of(self, left: Left, outputs: Sequence[Output], waiting: set[int]) -> Iterator[Outcome]:
        """The answers that these windows complete, and their errors. Takes them out of `waiting`."""
        sure: Sequence[float | None] = left.confidences or [None] * len(left.texts)
        for text, output, confidence in zip(left.texts, outputs, sure, strict=True):
            if text not in waiting:
                continue  # it was answered early and ran on, or ran twice: a stage has had this output
            waiting.remove(text)
            piece, hits = self.batch.pieces[text], self.batch.hits[text]
            stages = self.hooked.stages[text]
            if isinstance(output, Exception):
                yield piece.item, output
            elif piece.item.add(piece.index, output, hits, left.after, stages, self.times, confidence):
                yield piece.item, _answer(piece.item, self.parts[text])


def _prefetch(held: Held, plan: Plan) -> None:
    """Start copying the batch's modules to the device, if there is one, while its rows are retrieved."""
    if held.pieces and not plan.candidate.key.exact:
        modules = [held.parts[p.bundle.version.artefact].module for p in held.pieces]
        held.pieces[0].bundle.executor.prefetch(modules)


def _set_compute_time(times: Times) -> None:
    """Set the compute time up to now."""
    times.compute_s = time.monotonic() - times.begun - times.retrieve_s


def _answer(item: Item, part: TaskPart) -> TextResult | Exception:
    try:
        return answer_of(item, part)
    except Exception as error:
        return error
