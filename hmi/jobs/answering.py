"""Answers many texts as the server would, under one setting of token adaptation, for the stage's profile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from hmi.core import ModelId, ModelVersion
from hmi.engine.bundles import Bundle, Bundles, TaskPart
from hmi.engine.item import Item, Piece
from hmi.engine.request import TextRequest, TextResult
from hmi.engine.running import Held, Runner
from hmi.execution import BatchKey, Hook, Left, Rows
from hmi.execution.base import Output
from hmi.model.tasks import task_of_version
from hmi.stages import OFF, Batch, Candidate, Effect, Plan, Setting, Shape
from hmi.stages.token_adaptation.forced import forced_hooks
from hmi.training.splits import Split

BATCH = 32
"""Windows that run together."""


@dataclass
class Answered:
    """The outputs of a model for windows, and the rows that its layers read."""

    outputs: list[Tensor] = field(default_factory=list)
    """By window, lexical scores included."""
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
    name: str = "tokens"
    layers: int = 0
    outputs: dict[int, Tensor] = field(default_factory=dict)

    def settings(self, key: BatchKey) -> Sequence[Setting]:
        return (OFF, Setting(str(self.gamma)))

    def effect(self, setting: Setting, shape: Shape) -> Effect:
        return Effect((1.0,) * shape.layers)

    def hooks(self, setting: Setting, batch: Batch) -> Sequence[Hook]:
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
        """Let the model answer all windows of a split under a γ. report: takes the windows done so far."""
        found = Answered()
        artefact = self.bundle.version.artefact
        candidate = Candidate(0.0, 0.0, self.bundle.model.tenant, self.bundle.key, self.bundle.executor.layers)
        for first in range(0, len(split.encoded), BATCH):
            stage = Forced(gamma, found)
            runner = Runner([stage], None)
            windows = range(first, min(first + BATCH, len(split.encoded)))
            pieces = [self._piece(split, i) for i in windows]
            plan = Plan(candidate, {stage.name: Setting(str(gamma))})
            ran = runner.run(Held(pieces, {artefact: self.part}, []), plan)
            for _, error in ran.failed:
                raise error
            found.outputs += [stage.outputs[i] for i in range(len(pieces))]
            report(windows[-1] + 1)
        return found

    def _piece(self, split: Split, window: int) -> Piece:
        """A window as a text of its own, whose lexical features are those of its row."""
        owner = window if split.owners is None else split.owners[window]
        text = split.rows[owner].text
        return Piece(Item(TextRequest(self.bundle.model, text), self.bundle, [split.encoded[window]], _Unread()), 0)


class _Unread:
    """A sink whose answers are read from the run itself."""

    wanted = True

    def done(self, result: TextResult) -> None: ...

    def fail(self, error: Exception) -> None: ...
