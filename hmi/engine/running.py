"""One batch on a compute thread: retrieve, upper layers with their hooks, heads, answers. No event loop, no
futures."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from hmi.engine.answers import answer_of
from hmi.engine.bundles import TaskPart
from hmi.engine.guests import Host
from hmi.engine.heads import outputs_of
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
    """Of the pieces whose modules could not be loaded, which are not here."""


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


class Runner:
    """Runs batches, each on the thread that calls it."""

    def __init__(self, stages: Sequence[Stage], misses: MissRecorder | None) -> None:
        self._stages, self._misses = {stage.name: stage for stage in stages}, misses

    @torch.inference_mode()
    def run(self, held: Held, plan: Plan, host: Host | None) -> Ran:
        """host: where other batches may run between two layers of this one."""
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
        """Upper layers and heads, text by text as they are through. A row of one text never reaches
        another's, so what is no number stays with its own."""
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
