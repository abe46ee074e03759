"""The defaults of a tenant's training: module, learning rate, epochs.

Each was chosen on dev of the quality runs (docs/design/0003-tenant-module.md).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hmi.core import ModuleSpec

if TYPE_CHECKING:
    from hmi.model.tasks import TaskKind

EPOCHS = 8
MIN_STEPS, MANY_STEPS = 200, 5_000
"""With few rows there are more epochs, since a fresh module under-fits in fewer steps than this.
With many rows there are fewer: see `choose_epochs`."""
MIN_EPOCHS, MAX_EPOCHS = 3, 12
TAGGING_LR, DEFAULT_LR = 4e-3, 2e-3
PAIR_LORA_LR, PAIR_LR = 1e-3, 4e-3
"""For pairs LoRA needs a lower rate and a sequential adapter a higher one; other bottlenecks are
treated like it."""
LORA_RANK, LR_ROWS = 8, 2_000
"""The rank of LoRA and the number of rows that the rates were found at: higher ranks diverge at them."""


def choose_epochs(rows: int, batch: int) -> int:
    """EPOCHS; more where those are not MIN_STEPS steps, fewer where they are more than
    MANY_STEPS; within bounds."""
    steps_an_epoch = max(1, -(-rows // batch))
    wanted = max(min(EPOCHS, MANY_STEPS // steps_an_epoch), -(-MIN_STEPS // steps_an_epoch))
    return min(MAX_EPOCHS, max(MIN_EPOCHS, wanted))


def default_module(*, paired: bool) -> ModuleSpec:
    """Bottlenecks after the FFN for pairs of texts, LoRA for all else; both within the
    default size's budget."""
    return ModuleSpec(kind="sequential" if paired else "lora")


def default_lr(task: TaskKind, module: ModuleSpec, rows: int) -> float:
    """The learning rate for a task; for pairs it depends on whether the module has LoRA. LoRA's is
    lower for a higher rank. All are lower with more rows, since many steps at a high rate undo what
    the first ones learnt."""
    lora = "lora" in module.kind
    rate = TAGGING_LR if task.name == "tagging" else DEFAULT_LR
    if task.paired:
        rate = PAIR_LORA_LR if lora else PAIR_LR
    rate *= math.sqrt(min(1.0, LR_ROWS / rows))
    return rate * math.sqrt(LORA_RANK / module.rank) if lora and module.rank > LORA_RANK else rate
