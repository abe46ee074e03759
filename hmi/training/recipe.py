"""The recipe of a training: what decides it before its rows are known.

Jobs make one of a user's options; the benchmark and the demo make theirs of the same defaults.
`hmi.training.plan` settles a recipe for a task and its rows. Does not import torch, for the calls
that only check options.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from hmi.core import ModuleSpec

ClassWeights = Literal["off", "balanced", "auto"]
LongTexts = Literal["windows", "cut"]


@dataclass(frozen=True)
class HeldOut:
    """How many rows are held out where the user gives no dev rows."""

    share: float = 0.1
    small_share: float = 0.2
    """The share of fewer than `small` rows."""
    small: int = 100
    most: int = 1_000
    enough: int = 20
    """With fewer held-out rows the last epoch is kept, since the best one would be chance."""

    def wanted(self, rows: int) -> int:
        """The number of held-out rows, at least one."""
        return min(self.most, max(1, round(self.share_of(rows) * rows)))

    def share_of(self, rows: int) -> float:
        return self.small_share if rows < self.small else self.share


HELD_OUT = HeldOut()


@dataclass(frozen=True)
class Recipe:
    """None: the default for the task and the number of rows (`hmi.training.defaults`)."""

    module: ModuleSpec | None = None
    lr: float | None = None
    epochs: int | None = None
    batch: int = 16
    max_length: int = 256
    seed: int = 0
    dropout: float = 0.1
    weight_decay: float = 0.01
    bf16: bool = True
    """Products in bf16 where the CPU has them natively."""
    patience: int = 3
    """Epochs without a better dev score after which training ends."""
    class_weights: ClassWeights = "off"
    long_texts: LongTexts | None = None
    lexical: bool | None = None
    """Lexical features beside the module."""
    transitions: bool | None = None
    """Which tag follows which."""
    queries: bool = True
    """A head that also reads what its queries find among the rows before the last layer."""
    average: bool = True
    """Whether the weights are averaged over the last steps."""
    variants: int = 0
    """Changed copies of each row that a teacher labels."""
    held_out: HeldOut = field(default_factory=HeldOut)

    def plain(self, lr: float) -> Recipe:
        """The recipe at this rate and for the default epochs, without what the service adds to a module."""
        return replace(
            self,
            module=None,
            lr=lr,
            epochs=None,
            lexical=False,
            transitions=False,
            queries=False,
            average=False,
        )


RECIPE = Recipe()
"""The default of everything."""
