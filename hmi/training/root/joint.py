"""Trains the lower and the upper layers of a root together, each step through all layers: the last phase of a
long distillation (docs/design/0002-locality.md)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hmi.model.network.encoder import Encoder
from hmi.model.sources.lower import InputBias, LocalLower, working_type
from hmi.model.text.batching import Encoded
from hmi.training.fit.precision import arithmetic
from hmi.training.fit.reports import StepReport
from hmi.training.root.distillation import (
    DistilPlan,
    compute_features,
    drawn,
    lower_groups,
    mean_square,
    spread_of,
    upper_loss,
    upper_states,
)
from hmi.training.root.phases import Keeper, ParameterGroup, run_phase

SPLIT_WEIGHT = 0.2
"""The weight of the error at the split. That of the error in what the last layer gives is 1."""


def train_jointly(
    parts: tuple[LocalLower, nn.ModuleList, InputBias],
    teacher: Encoder,
    texts: Sequence[Encoded],
    plan: DistilPlan,
    report: StepReport,
    *,
    bf16: bool = False,
    keeper: Keeper | None = None,
) -> None:
    """Train the lower layers, the bias and the upper layers in place, for `plan.joint_steps` steps.

    The loss is that of `train_upper` plus, with SPLIT_WEIGHT, the error at the split. So the lower layers
    learn what matters after the last layer, and the upper ones follow them.
    """
    lower, upper, bias = parts
    heads = teacher.shape.heads

    def loss_of(step: int) -> Tensor:
        batch, cover = drawn(texts, plan.joint_tokens, lower.n, (plan.seed, "joint", step))
        mask = batch.mask
        with arithmetic(bf16=bf16):
            with torch.no_grad():
                true = teacher(batch.ids, mask, batch.types, upto=lower.depth).float()
                want = upper_states(teacher.layers[lower.depth :], true, mask, heads)
            x = compute_features(lower, bias, batch, cover)
            got = upper_states(upper, x.to(working_type()), mask, heads)
        split = mean_square((x.float() - true)[mask]) / spread_of(true[mask])
        return upper_loss(got, want, mask) + SPLIT_WEIGHT * split

    groups = lower_groups(lower, bias, plan.joint_lr, plan.joint_lr_bias)
    groups.append(ParameterGroup({f"upper.{name}": p for name, p in upper.named_parameters()}, plan.joint_lr))
    run_phase(groups, plan.joint_steps, loss_of, report, clip=1.0, keeper=keeper)
