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
class Column:
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


SHARED = Column("shared", "last", (1e-3, 3e-3, 1e-2, 3e-2), lambda _, __: FrozenBackbone())
"""A frozen encoder and a head."""
DEDICATED = Column("dedicated", "ids", (3e-5, 6e-5, 1.2e-4, 2.4e-4), lambda m, _: EncoderBackbone(m.source))
"""A copy of the source model with all weights fine-tuned."""
PLOT_ONLY = Column(
    "plot_only",
    "plot",
    (3e-5, 6e-5, 1.2e-4, 2.4e-4),
    lambda m, _: UpperBackbone(m.root.upper, m.root.info.shape.heads),
)
"""The upper layers with all weights fine-tuned, on the PLOT."""


def hbert(module: ModuleSpec) -> Column:
    """An arm with a tenant's module in the root's upper layers on the PLOT, as the service trains it."""
    return Column("hbert", "plot", MODULE_LRS, _module(module, of_source=False), module, served=True)


def columns(module: ModuleSpec, adapter: ModuleSpec | None = None) -> list[Column]:
    """Return the arms in the order of the tables.

    `module` is that of the arms on the PLOT, `adapter` that in the source's upper layers, above its true
    lower layers. There LoRA, the default, is the best kind for pairs too.
    """
    adapter, own = adapter or ModuleSpec(), hbert(module)
    return [
        DEDICATED,
        own,
        replace(own, name="varied", variants=VARIANTS),
        replace(own, name="taught", unlabelled=True),
        replace(own, name="taught_varied", unlabelled=True, variants=VARIANTS),
        PLOT_ONLY,
        Column("adapter_only", "lower", MODULE_LRS, _module(adapter, of_source=True), adapter),
        SHARED,
        replace(own, name="hbert_plain", served=False),
    ]
