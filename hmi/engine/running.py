"""The run of one batch on a compute thread: retrieval, upper layers with hooks, heads, answers.

Nothing here knows of the event loop or of futures.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from hmi.engine.answers import answer_of
from hmi.engine.bundles import TaskPart
from hmi.engine.heads import outputs_of
from hmi.engine.item import Item, Piece, Times
from hmi.engine.request import TextResult
from hmi.engine.retrieval import Failed, Retrieved, retrieve
from hmi.execution import Hook, Rows, trace
from hmi.stages import Batch, Plan, Stage
from hmi.stores.failures import tell
from hmi.stores.miss_recorder import MissRecorder

log = logging.getLogger("hmi.engine")
Outcome = tuple[Item, TextResult | Exception]
"""A text, with its answer or the error that it has instead."""


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
    cpu_s: float
    """CPU seconds of the compute thread, and seconds that it slept until a device had computed the batch."""


class Runner:
    """Runs batches on the calling thread."""

    def __init__(self, stages: Sequence[Stage], misses: MissRecorder | None) -> None:
        self._stages, self._misses = {stage.name: stage for stage in stages}, misses

    @torch.inference_mode()
    def run(self, held: Held, plan: Plan) -> Ran:
        """Run a batch."""
        times, cpu = Times(time.monotonic()), time.thread_time()
        _prefetch(held, plan)
        with trace.span("retrieve"):
            batch = retrieve(held.pieces)
        times.retrieve_s = time.monotonic() - times.begun
        answers: list[tuple[Item, TextResult]] = []
        failed = [*held.failed, *batch.failed]
        if batch.pieces:
            for item, outcome in self._compute(batch, held.parts, plan, times):
                if isinstance(outcome, Exception):
                    failed.append((item, outcome))
                else:
                    answers.append((item, outcome))
        _computed(times)
        cpu_s = time.thread_time() - cpu + times.waited_s
        self._record(batch)
        return Ran(batch, answers, failed, times, cpu_s)

    def _record(self, batch: Retrieved) -> None:
        """Record the batch's misses. Answers are worth more than their record: a failure is logged."""
        try:
            if self._misses is not None and self._misses.on:
                batch.record(self._misses)
        except Exception as error:
            tell(log, "the misses of a batch could not be recorded", error)

    def _compute(
        self, batch: Retrieved, by_artefact: Mapping[str, TaskPart], plan: Plan, times: Times
    ) -> Iterator[Outcome]:
        """Run the upper layers, and the head of each text as soon as the text has left them.

        Rows of different texts never mix, so a NaN stays in its own text.
        """
        key, parts = plan.candidate.key, [by_artefact[p.bundle.version.artefact] for p in batch.pieces]
        rows, executor = Rows.packed(batch.rows, batch.offsets), batch.pieces[0].bundle.executor
        stages = {name: setting.name for name, setting in plan.on.items()}
        hooks = self._hooks(batch, plan)
        inside = set(range(len(batch.pieces)))
        for left in executor.run(key, rows, [p.module for p in parts], hooks):
            inside.difference_update(left.texts)
            times.waited_s += left.waited_s
            with trace.span("heads"):
                outputs = outputs_of(left, batch.pieces, parts)
            _computed(times)
            for text, output in zip(left.texts, outputs, strict=True):
                piece, hits = batch.pieces[text], batch.hits[text]
                if isinstance(output, Exception):
                    yield piece.item, output
                elif piece.item.add(piece.index, output, hits, left.after, stages, times):
                    yield piece.item, _answer(piece.item, parts[text])
        for text in inside:
            yield batch.pieces[text].item, RuntimeError("a text was lost between layers")

    def _hooks(self, batch: Retrieved, plan: Plan) -> list[Hook]:
        if not plan.on:
            return []
        about = Batch(
            plan.candidate.key,
            [len(p.window) for p in batch.pieces],
            [p.item.request.model for p in batch.pieces],
        )
        return [
            hook for name, setting in plan.on.items() for hook in self._stages[name].hooks(setting, about)
        ]


def _prefetch(held: Held, plan: Plan) -> None:
    """Start copying the batch's modules to the device, if there is one, while its rows are retrieved."""
    if held.pieces and not plan.candidate.key.exact:
        modules = [held.parts[p.bundle.version.artefact].module for p in held.pieces]
        held.pieces[0].bundle.executor.prefetch(modules)


def _computed(times: Times) -> None:
    """Set the compute time up to now."""
    times.compute_s = time.monotonic() - times.begun - times.retrieve_s


def _answer(item: Item, part: TaskPart) -> TextResult | Exception:
    try:
        return answer_of(item, part)
    except Exception as error:
        return error
