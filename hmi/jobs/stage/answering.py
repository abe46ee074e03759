"""Answers many texts as the server would, under one setting of token adaptation, for the stage's profile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from hmi.core import ModelId, ModelVersion
from hmi.engine.admit.bundles import Bundle, Bundles, TaskPart
from hmi.engine.run.running import Held, Runner
from hmi.engine.texts.item import Item, Piece
from hmi.engine.texts.request import TextRequest, TextResult
from hmi.execution import BatchKey, Hook, Left, Rows
from hmi.execution.base import Output
from hmi.model.tasks import task_of_version
from hmi.stages.base import OFF, Effect, Setting, Shape, StageBatch
from hmi.stages.planner import Candidate, Plan
from hmi.stages.token_adaptation.forced import forced_hooks
from hmi.training.tasks.splits import Split

BATCH = 32
"""The windows that run together, at least."""


@dataclass
class Answered:
    """The outputs of a model for windows, and the rows that its layers read."""

    outputs: list[Tensor]
    """[windows]: the head's output of each, lexical scores included."""
    rows: int = 0
    """Rows that entered a layer, of all layers together."""
    plain: int = 0
    """The same without adaptation."""

    @property
    def saved(self) -> float:
        """The fraction of the layers' rows that was saved; below 0 with prompts."""
        return 1.0 - self.rows / max(1, self.plain)


@dataclass
class Forced:
    """A stage that adapts every text of a batch, and the hook that reads what comes of it."""

    gamma: int
    answered: Answered
    name: ClassVar[str] = "tokens"
    layers: int = 0
    outputs: dict[int, Tensor] = field(default_factory=dict)

    def settings(self, key: BatchKey) -> Sequence[Setting]:
        return (OFF, Setting(str(self.gamma)))

    def effect(self, setting: Setting, shape: Shape) -> Effect:
        return Effect((1.0,) * shape.layers)

    def hooks(self, setting: Setting, batch: StageBatch) -> Sequence[Hook]:
        self.layers = batch.layers
        self.answered.plain += batch.layers * sum(text.tokens for text in batch.texts)
        return [*forced_hooks(self.gamma, batch), self]

    @property
    def at(self) -> frozenset[int]:
        return frozenset(range(self.layers))

    @property
    def concerns(self) -> None:
        return None

    def __call__(self, layer: int, rows: Rows) -> tuple[Rows, Left | None]:
        self.answered.rows += rows.offsets[-1]
        return rows, None

    def ended(self, texts: Sequence[int], outputs: list[Output]) -> list[Output]:
        self.outputs |= {t: o for t, o in zip(texts, outputs, strict=True) if isinstance(o, Tensor)}
        return outputs

    def close(self) -> None: ...


class Answering:
    """One version of a model, which answers on the calling thread."""

    def __init__(self, bundles: Bundles, model: ModelId, version: ModelVersion, part: TaskPart) -> None:
        upper = bundles.upper(version).load()
        upper.executor.settle()
        reader = bundles.reader(version).load()
        self.bundle = Bundle(model, version, upper.root, upper.executor, reader, task_of_version(version))
        self.part = part
        part.ready(upper.executor.prepare, upper.executor)

    def answer(self, split: Split, gamma: int, report: Callable[[int], None]) -> Answered:
        """Let the model answer the rows of a split under a γ. report: takes the number of rows done."""
        found, artefact = Answered([torch.empty(0)] * len(split.encoded)), self.bundle.version.artefact
        executor, tenant = self.bundle.executor, self.bundle.model.tenant
        candidate = Candidate(0.0, 0.0, tenant, self.bundle.key, executor.layers)
        plan = Plan(candidate, {Forced.name: Setting(str(gamma))})
        windows = split.of_rows()
        for rows in _batches(windows):
            stage = Forced(gamma, found)
            pieces = [piece for row in rows for piece in self._pieces(split, row, windows[row])]
            ran = Runner([stage], None).run(Held(pieces, {artefact: self.part}, []), plan)
            for _, error in ran.failed:
                raise error
            for i, window in enumerate(window for row in rows for window in windows[row]):
                found.outputs[window] = stage.outputs[i]
            report(rows[-1] + 1)
        return found

    def _pieces(self, split: Split, row: int, windows: Sequence[int]) -> list[Piece]:
        encoded, request = (
            [split.encoded[i] for i in windows],
            TextRequest(self.bundle.model, split.rows[row].text),
        )
        item = Item(request, self.bundle, encoded, _Unread())
        return [Piece(item, i) for i in range(len(encoded))]


def _batches(windows: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """The rows of each batch. windows: those of each row."""
    rows, count = list[int](), 0
    for row, mine in enumerate(windows):
        rows, count = [*rows, row], count + len(mine)
        if count >= BATCH or row == len(windows) - 1:
            yield rows
            rows, count = [], 0


class _Unread:
    """A sink whose answers are read from the run itself."""

    wanted = True

    def done(self, result: TextResult) -> None: ...

    def fail(self, error: Exception) -> None: ...
