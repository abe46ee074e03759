"""Text that a language model writes. Its answers come token by token, not from a head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NoReturn

from torch import Tensor

from hmi.core import Task
from hmi.model.tasks.base import TaskKind
from hmi.model.text.batching import Encoded


@dataclass(frozen=True)
class Generation(TaskKind):
    """`hmi.execution.decoding` writes the answers."""

    name: ClassVar[Task] = "generation"

    @property
    def forms(self) -> tuple[type | tuple[type, ...], str]:
        return str, "a prompt"

    @property
    def windowed(self) -> bool:
        return False

    @property
    def outputs(self) -> int:
        return 0

    def merge(self, outputs: Sequence[Tensor], windows: Sequence[Encoded], words: int) -> NoReturn:
        raise TypeError("a language model has no head whose outputs could be merged")

    def answer(self, merged: Tensor, *, scores: bool = False, temperature: float | None = None) -> NoReturn:
        raise TypeError("a language model has no head whose outputs could be an answer")
