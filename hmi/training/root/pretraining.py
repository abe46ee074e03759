"""Further pretraining of a branch (HMI, section 4.2): masked-language modelling trains the lower
layers through frozen upper ones.

A root has no masked-language-model head. A new one is tied to the word table (a transform, then the
transposed table) and trained alone before the lower layers change. Further pretraining is off by
default, since no gain on a task has been shown yet (docs/design/0002-locality.md).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmi.model.sources.lower import InputBias, LocalLower
from hmi.model.text.batching import Encoded
from hmi.training.fit.optimisers import AdamW
from hmi.training.fit.reports import StepReport
from hmi.training.root.distillation import (
    PaddedBatch,
    compute_features,
    random_cover,
    run_upper,
    sample_batches,
)

MASK_SHARE = 0.15
"""Share of the inner tokens to predict."""
WARMUP_SHARE = 0.4
"""Share of the steps that train only the head."""


class TiedHead(nn.Module):
    """A masked-language-model head: hidden [m, dim] -> logits [m, vocab], through the frozen word table."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        vocab, dim = table.shape
        self.transform = nn.Linear(dim, dim)
        self.ln = nn.LayerNorm(dim)
        self.bias = nn.Parameter(torch.zeros(vocab))
        self.table = table

    def forward(self, hidden: Tensor) -> Tensor:
        return F.linear(self.ln(F.gelu(self.transform(hidden))), self.table, self.bias)


@dataclass(frozen=True)
class PretrainPlan:
    steps: int = 200
    tokens_per_step: int = 512
    lr: float = 5e-5
    head_lr: float = 1e-3
    seed: int = 0


def pretrain_lower(
    lower: LocalLower,
    bias: InputBias,
    upper: nn.ModuleList,
    texts: Sequence[Encoded],
    mask_id: int,
    plan: PretrainPlan,
    report: StepReport,
) -> None:
    """Train `lower` in place on masked tokens of `texts`; upper layers, bias and word table stay frozen."""
    rng, generator = random.Random(plan.seed), torch.Generator().manual_seed(plan.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(plan.seed)
        head = TiedHead(lower.embeddings.word.weight.detach())
    body = [*lower.layers.parameters(), lower.fold]
    for p in body:
        p.requires_grad_(True)
    optimiser = AdamW(
        [{"params": body, "lr": plan.lr}, {"params": list(head.parameters()), "lr": plan.head_lr}],
        weight_decay=0.0,
    )
    warmup = int(plan.steps * WARMUP_SHARE)
    batches = sample_batches(texts, plan.tokens_per_step, rng)
    for step, batch in zip(range(plan.steps), batches, strict=False):
        masked, wanted = mask_tokens(batch, mask_id, generator)
        with torch.set_grad_enabled(step >= warmup):
            x = compute_features(lower, bias, masked, random_cover(masked.ids, lower.n, rng, generator))
            hidden = run_upper(upper, x, masked.mask, lower.shape.heads)
        loss = F.cross_entropy(head(hidden[wanted]), batch.ids[wanted])
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_([*body, *head.parameters()], 1.0)
        optimiser.step()
        report(step + 1, plan.steps, loss.item())
    lower.requires_grad_(False)


def mask_tokens(batch: PaddedBatch, mask_id: int, generator: torch.Generator) -> tuple[PaddedBatch, Tensor]:
    """Mask 15% of the inner tokens by BERT's 80/10/10 rule. Returns the batch, and where to
    predict: bool [B, T]."""
    draw = torch.rand(batch.ids.shape, generator=generator)
    inner = batch.mask & (batch.positions > 0) & (batch.ids != batch.ids[0, int(batch.mask[0].sum()) - 1])
    wanted = inner & (draw < MASK_SHARE)
    if not wanted.any():
        wanted[0, 1] = True
    how = torch.rand(batch.ids.shape, generator=generator)
    shuffled = batch.ids[inner][torch.randint(int(inner.sum()), batch.ids.shape, generator=generator)]
    ids = torch.where(wanted & (how < 0.8), mask_id, batch.ids)
    ids = torch.where(wanted & (how >= 0.9), shuffled, ids)
    return PaddedBatch(ids, batch.types, batch.mask), wanted
