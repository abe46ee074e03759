"""The run of one batch on a compute thread: retrieval, upper layers with hooks, heads, answers.

Nothing here knows of the event loop or of futures.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from hmi.engine.answers import answer_of
from hmi.engine.bundles import TaskPart
from hmi.engine.heads import outputs_of
from hmi.engine.interleaving import Host
from hmi.engine.item import Item, Piece
from hmi.engine.request import InferResult
from hmi.engine.retrieval import Failed, Retrieved, retrieve
from hmi.execution import Hook, Left, Rows, no_pause
from hmi.stages import Batch, Plan, Stage
from hmi.stores.failures import tell
from hmi.stores.miss_recorder import MissRecorder

log = logging.getLogger("hmi.engine")


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
    answers: list[tuple[Item, InferResult]]
    failed: Failed
    begun: float
    """The `time.monotonic()` at which it began."""
    retrieve_s: float
    compute_s: float
    """Seconds of upper layers, heads and answers, without the time of interleaved batches."""
    cpu_s: float
    """CPU seconds of the compute thread in both, without the time of interleaved batches."""


class Runner:
    """Runs batches on the calling thread."""

    def __init__(self, stages: Sequence[Stage], misses: MissRecorder | None) -> None:
        self._stages, self._misses = {stage.name: stage for stage in stages}, misses

    @torch.inference_mode()
    def run(self, held: Held, plan: Plan, host: Host | None) -> Ran:
        """Run a batch. `host` lets other batches run between its layers; None if it takes none."""
        begun, cpu = time.monotonic(), time.thread_time()
        batch = retrieve(held.pieces)
        retrieved = time.monotonic()
        answers: list[tuple[Item, InferResult]] = []
        failed = [*held.failed, *batch.failed]
        if batch.pieces:
            self._compute(batch, held.parts, plan, host, answers, failed)
        compute_s, cpu_s = time.monotonic() - retrieved, time.thread_time() - cpu
        if host is not None:
            compute_s, cpu_s = compute_s - host.away_s, cpu_s - host.away_cpu_s
        self._record(batch)
        return Ran(batch, answers, failed, begun, retrieved - begun, compute_s, cpu_s)

    def _record(self, batch: Retrieved) -> None:
        """Record the batch's misses. Answers are worth more than their record: a failure is logged."""
        try:
            if self._misses is not None and self._misses.on:
                batch.record(self._misses)
        except Exception as error:
            tell(log, "the misses of a batch could not be recorded", error)

    def _compute(
        self,
        batch: Retrieved,
        by_artefact: Mapping[str, TaskPart],
        plan: Plan,
        host: Host | None,
        answers: list[tuple[Item, InferResult]],
        failed: Failed,
    ) -> None:
        """Run the upper layers, and the head of each text as soon as the text has left them.

        Rows of different texts never mix, so a NaN stays in its own text.
        """
        key, parts = plan.candidate.key, [by_artefact[p.bundle.version.artefact] for p in batch.pieces]
        rows, pause = Rows.packed(batch.rows, batch.offsets), no_pause if host is None else host.pause
        executor = batch.pieces[0].bundle.executor
        names = {name: setting.name for name, setting in plan.on.items()}
        hooks = self._hooks(batch, plan)
        inside = set(range(len(batch.pieces)))
        for left in executor.run(key, rows, [p.module for p in parts], hooks, pause):
            inside.difference_update(left.texts)
            self._finish(left, batch, parts, names, answers, failed)
        failed.extend(
            (batch.pieces[text].item, RuntimeError("a text was lost between layers")) for text in inside
        )

    def _finish(
        self,
        left: Left,
        batch: Retrieved,
        parts: Sequence[TaskPart],
        stages: Mapping[str, str],
        answers: list[tuple[Item, InferResult]],
        failed: Failed,
    ) -> None:
        outputs = outputs_of(left, batch.pieces, parts)
        for text, output in zip(left.texts, outputs, strict=True):
            piece, part = batch.pieces[text], parts[text]
            if isinstance(output, Exception):
                failed.append((piece.item, output))
                continue
            try:
                if piece.item.add(piece.index, output, batch.hits[text], left.after, stages):
                    answers.append((piece.item, answer_of(piece.item, part)))
            except Exception as error:
                failed.append((piece.item, error))

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
