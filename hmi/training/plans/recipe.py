"""The recipe of a training: its settings before its rows are known.

Jobs make a recipe from a user's options; the benchmark and the demo start from the same defaults.
`hmi.training.fit.plan` turns a recipe into a plan for a task and its rows. Does not import torch, since
some calls only check options.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from hmi.core import ModuleSpec

ClassWeights = Literal["off", "balanced", "auto"]
LongTexts = Literal["windows", "cut"]


@dataclass(frozen=True)
class HeldOut:
    """The number of rows to hold out if the user gives no dev rows."""

    share: float = 0.1
    small_share: float = 0.2
    """The share if there are fewer than `small` rows."""
    small: int = 100
    most: int = 1_000
    enough: int = 20
    """With fewer held-out rows nothing is calibrated on them, and no teacher's epoch is chosen by them."""
    choosing: int = 50
    """With fewer held-out rows a tenant's model keeps its last epoch, since the best one would be chance.
    Figures: docs/design/0003-tenant-module.md."""

    def wanted(self, rows: int) -> int:
        """The number of rows to hold out, at least one."""
        return min(self.most, max(1, round(self.share_of(rows) * rows)))

    def chooses(self, held_out: int) -> bool:
        """Return whether this many held-out rows choose the epoch that a tenant's model keeps."""
        return held_out >= self.choosing

    def share_of(self, rows: int) -> float:
        return self.small_share if rows < self.small else self.share


HELD_OUT = HeldOut()


@dataclass(frozen=True)
class Recipe:
    """The settings of a training. None means the default for the task and the number
    of rows (`hmi.training.plans.defaults`)."""

    module: ModuleSpec | None = None
    lr: float | None = None
    epochs: int | None = None
    batch: int | None = None
    max_length: int = 256
    seed: int = 0
    dropout: float = 0.1
    weight_decay: float = 0.01
    bf16: bool = True
    """Compute matrix products in bf16 if the CPU does so natively."""
    patience: int = 3
    """Training ends after this many epochs without a better score on dev."""
    class_weights: ClassWeights = "off"
    long_texts: LongTexts | None = None
    lexical: bool | None = None
    """Whether to train lexical features beside the module."""
    transitions: bool | None = None
    """Whether to learn which tag follows which."""
    queries: bool = True
    """Whether the head also attends, with queries of its own, to the rows that enter the last layer."""
    average: bool = True
    """Whether to average the weights over the last steps."""
    variants: int = 0
    """Number of changed copies of each row that a teacher labels."""
    held_out: HeldOut = field(default_factory=HeldOut)

    def plain(self, lr: float) -> Recipe:
        """The recipe for a plain copy: at this rate, for the default epochs, and without module,
        lexical features, transitions, queries and average."""
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
"""The default recipe."""
