"""The arms, which are the columns of the tables: what each trains, on which features, at which rates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch

from bench.cases.quality.models import Encoders
from hmi.core import ModuleSpec, Task
from hmi.model.tenant.modules import new_module
from hmi.model.text.lexical import lexical_buckets
from hmi.training.fit.backbones import (
    Backbone,
    EncoderBackbone,
    FrozenBackbone,
    ModuleBackbone,
    UpperBackbone,
)
from hmi.training.plans.recipe import RECIPE, Recipe

ArmInput = Literal["ids", "lower", "last", "plot"]
"""What an arm's backbone reads.

Token ids, the source's states at the split or after the last layer, or PLOT rows.
"""


VARIANTS = 3
"""Changed copies of each row that a teacher labels."""
MODULE_LRS = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3)


@dataclass(frozen=True)
class Arm:
    """A column of the tables.

    `backbone(models, seed)` creates what is trained. `lrs` are ascending.
    """

    name: str
    reads: ArmInput
    lrs: tuple[float, ...]
    backbone: Callable[[Encoders, int], Backbone]
    module: ModuleSpec | None = None
    served: bool = False
    """Whether to train what the service adds by default.

    These are lexical features, transitions, the head's queries and averaged weights.
    """
    unlabelled: bool = False
    """Whether a teacher labels the task's unlabelled texts, which are then trained on too."""
    variants: int = 0
    """Changed copies of each row that the teacher also labels."""
    epochs: int | None = None
    """The most epochs; None: as many as the service's default for the number of rows."""

    def recipe(self, lr: float, seed: int) -> Recipe:
        """Return the recipe of a run at this learning rate."""
        recipe = replace(RECIPE, seed=seed)
        recipe = replace(recipe, module=self.module, lr=lr) if self.served else recipe.plain(lr)
        return replace(recipe, epochs=self.epochs)

    def lexical_for(self, kind: Task) -> int:
        """Return the number of buckets of lexical features, 0 for none."""
        return lexical_buckets(kind, self.recipe(self.lrs[0], 0).lexical)


def _module(spec: ModuleSpec, *, of_source: bool) -> Callable[[Encoders, int], Backbone]:
    def backbone(models: Encoders, seed: int) -> Backbone:
        torch.manual_seed(seed)
        upper = models.source_upper if of_source else models.root.upper
        return ModuleBackbone(
            upper, new_module(spec, models.root.info.shape, len(upper)), models.root.info.shape.heads
        )

    return backbone


SHARED = Arm("shared", "last", (1e-3, 3e-3, 1e-2, 3e-2), lambda _, __: FrozenBackbone())
"""A frozen encoder and a head."""
DEDICATED = Arm("dedicated", "ids", (3e-5, 6e-5, 1.2e-4, 2.4e-4), lambda m, _: EncoderBackbone(m.source))
"""A copy of the source model with all weights fine-tuned."""
PLOT_ONLY = Arm(
    "plot_only",
    "plot",
    (3e-5, 6e-5, 1.2e-4, 2.4e-4),
    lambda m, _: UpperBackbone(m.root.upper, m.root.info.shape.heads),
)
"""The upper layers with all weights fine-tuned, on the PLOT."""


def adapter_only(module: ModuleSpec) -> Arm:
    """An arm with a tenant's module in the source's upper layers, above its true lower layers."""
    backbone = _module(module, of_source=True)
    return Arm("adapter_only", "lower", MODULE_LRS, backbone, module)


def hbert(module: ModuleSpec, *, served: bool = True) -> Arm:
    """An arm with a tenant's module in the root's upper layers on the PLOT.

    `served` adds what the service adds by default.
    """
    backbone = _module(module, of_source=False)
    return Arm("hbert" if served else "hbert_plain", "plot", MODULE_LRS, backbone, module, served=served)


def hbert_plain(module: ModuleSpec) -> Arm:
    """An arm with a tenant's module on the PLOT, and nothing else."""
    return hbert(module, served=False)


def taught(module: ModuleSpec) -> Arm:
    """The served arm with a teacher and unlabelled texts."""
    return replace(hbert(module), name="taught", unlabelled=True)


def varied(module: ModuleSpec) -> Arm:
    """The served arm with a teacher and changed copies of the rows."""
    return replace(hbert(module), name="varied", variants=VARIANTS)


def taught_varied(module: ModuleSpec) -> Arm:
    """The served arm with a teacher, unlabelled texts and changed copies."""
    return replace(taught(module), name="taught_varied", variants=VARIANTS)


MADE_OF_A_MODULE: dict[str, Callable[[ModuleSpec], Arm]] = {
    "hbert": hbert,
    "varied": varied,
    "taught": taught,
    "taught_varied": taught_varied,
    "adapter_only": adapter_only,
    "hbert_plain": hbert_plain,
}


def columns(module: ModuleSpec) -> list[Arm]:
    """Return the arms in the order of the tables.

    `module` is that of the served arms. On the true lower layers LoRA is the best kind for pairs too.
    """
    served = [hbert(module), varied(module), taught(module), taught_varied(module)]
    return [DEDICATED, *served, PLOT_ONLY, adapter_only(ModuleSpec()), SHARED, hbert_plain(module)]
