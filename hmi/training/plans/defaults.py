"""Defaults of a tenant's training: module, learning rate, epochs.

They were chosen on the dev rows of the quality runs (docs/design/0003-tenant-module.md).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hmi.core import ModuleSpec

if TYPE_CHECKING:
    from hmi.model.tasks import TaskKind

BATCH = 16
EPOCHS = 8
MIN_STEPS = 200
"""With few rows there are more epochs, to reach this many steps: with fewer, a fresh module under-fits."""
MANY_STEPS = 5_000
"""With many rows there are fewer epochs, to stay within this many steps."""
MIN_EPOCHS, MAX_EPOCHS = 3, 12
TAGGING_LR, DEFAULT_LR = 4e-3, 2e-3
PAIR_LORA_LR = 1e-3
"""For pairs LoRA needs a lower rate."""
PAIR_LR = 4e-3
"""For pairs a sequential adapter needs a higher rate. Other bottlenecks get the same."""
ALIGNED_LR = 1e-3
"""The highest rate for pairs beside an alignment, which leaves less to learn (docs/design/0027-pairs.md)."""
WRITING_LR = 2e-3
"""For a language model. How this and those below were chosen: docs/benchmarks/2026-11-generation.md."""
WRITING_BATCH, LONG_BATCH = 8, 2
"""Smaller than BATCH. They give more steps at nearly the same cost, and fewer steps leave much unlearnt. Long
completions need the most steps."""
LONG_COMPLETION = 10
"""Tokens. With more on average, the end among them, a batch has LONG_BATCH rows."""
WRITING_DROPOUT = 0.0
WRITING_EPOCHS = 4
WRITING_READS = 1_600
"""As EPOCHS for a language model, whose steps take far longer, and which can write from the start. With few
rows there are more epochs, to read this many rows."""
WRITING_LENGTH = 512
"""The most tokens of prompt and completion together."""
WRITING_MODULE = ModuleSpec(kind="lora", rank=2, sites=("q", "v", "o", "fi", "fo"))
"""Low ranks at many sites learn more than a high one at two. On 30 layers of SmolLM2-135M it takes .9 MB."""
LORA_RANK = 8
"""The rank that LoRA's rates were tuned for. Higher ranks diverge at them."""
LR_ROWS = 2_000
"""The number of rows that the rates were tuned for."""


def choose_epochs(rows: int, batch: int, *, writing: bool = False) -> int:
    """EPOCHS, raised to reach MIN_STEPS or lowered to stay within MANY_STEPS, from
    MIN_EPOCHS to MAX_EPOCHS. writing: of a language model, by WRITING_EPOCHS and WRITING_READS."""
    steps_an_epoch = max(1, -(-rows // batch))
    if writing:
        epochs, least = WRITING_EPOCHS, -(-WRITING_READS // max(1, rows))
    else:
        epochs, least = EPOCHS, -(-MIN_STEPS // steps_an_epoch)
    wanted = max(min(epochs, MANY_STEPS // steps_an_epoch), least)
    return min(MAX_EPOCHS, max(MIN_EPOCHS, wanted))


def choose_writing_batch(tokens: float) -> int:
    """Rows of a step of a language model. tokens: of a completion, on average."""
    return LONG_BATCH if tokens > LONG_COMPLETION else WRITING_BATCH


def default_module(*, paired: bool, writing: bool = False) -> ModuleSpec:
    """Bottlenecks after the FFN (sequential) for pairs of texts, else LoRA; both of the default size. For a
    language model (`writing`) WRITING_MODULE."""
    if writing:
        return WRITING_MODULE
    return ModuleSpec(kind="sequential" if paired else "lora")


def default_lr(task: TaskKind, module: ModuleSpec, rows: int, *, aligned: bool = False) -> float:
    """The learning rate for a task and a module. `aligned`: beside an alignment of pairs.

    LoRA's rate falls as its rank grows. All rates fall with more rows, since many steps at a high
    rate undo what the first ones learnt.
    """
    lora = "lora" in module.kind
    rate = TAGGING_LR if task.name == "tagging" else DEFAULT_LR
    if task.paired:
        rate = PAIR_LORA_LR if lora else PAIR_LR
    if aligned:
        rate = min(rate, ALIGNED_LR)
    rate *= math.sqrt(min(1.0, LR_ROWS / rows))
    return rate * math.sqrt(LORA_RANK / module.rank) if lora and module.rank > LORA_RANK else rate
