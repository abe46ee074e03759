"""Trains all layers of a language model's root together: the local lower ones and the upper ones follow each
other towards the source's next tokens. All that changes is small enough to ship: a difference of low rank for
each matrix, and each order's matrix and bias."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmi.model.network.decoder import Decoder, DecoderLayer, run_layers
from hmi.model.sources.causal import CausalLower
from hmi.model.sources.generative_root import UpperDecoder, set_first
from hmi.model.text.batching import Encoded, pad_ids
from hmi.training.fit.precision import arithmetic
from hmi.training.fit.reports import StepReport
from hmi.training.root.distillation import GROUPS, mean_square, one_group, spread_of
from hmi.training.root.phases import Keeper, ParameterGroup, run_phase

RANK = 16
MATRICES = ("qkv", "o", "fi", "fo")
SPLIT_WEIGHT = 0.2
"""The weight of the error at the split, relative to the states' spread. That of KL, in nats, is 1."""


@dataclass(frozen=True)
class TogetherPlan:
    steps: int
    tokens: int = 1024
    """Tokens of a step."""
    lr: float = 1e-3
    fold_lr: float = 1e-4
    seed: int = 0


class LowRank(nn.Module):
    """A frozen linear map and a difference of rank RANK: x [..., in] -> [..., out]."""

    def __init__(self, linear: nn.Linear, draw: torch.Generator) -> None:
        super().__init__()
        self.linear = linear
        size = linear.in_features
        self.down = nn.Parameter(torch.randn(RANK, size, generator=draw) / math.sqrt(size))
        self.up = nn.Parameter(torch.zeros(linear.out_features, RANK))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x) + F.linear(F.linear(x, self.down), self.up)
        return y

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """The same as one linear map."""
        self.linear.weight += self.up @ self.down
        return self.linear


def train_together(
    parts: tuple[CausalLower, UpperDecoder],
    teacher: Decoder,
    texts: Sequence[Encoded],
    plan: TogetherPlan,
    report: StepReport,
    *,
    bf16: bool = False,
    keeper: Keeper | None = None,
) -> None:
    """Train `parts` in place, for `plan.steps` steps. texts: of more than two tokens each.

    The loss is KL from the source's next token to the root's, over all words, plus the error at the split. In
    half of the steps n-grams are dropped at random, so that shorter ones are trained, too.
    """
    lower, upper = parts
    for part in parts:
        part.requires_grad_(False)
    draw = torch.Generator().manual_seed(plan.seed)
    places = list(_places(parts))
    differences: dict[str, nn.Parameter] = {}
    for name, layer, matrix in places:
        made = LowRank(getattr(layer, matrix), draw)
        setattr(layer, matrix, made)
        differences |= {f"{name}.down": made.down, f"{name}.up": made.up}

    def loss_of(step: int) -> Tensor:
        ids, orders = drawn(texts, plan.tokens, lower.n, (plan.seed, step))
        there = ids > 0
        with arithmetic(bf16=bf16):
            with torch.no_grad():
                true = teacher(ids, upto=lower.depth).float()
                last = run_layers(teacher.layers[lower.depth :], true, teacher.shape)
                want = teacher.logits(last[there])[:, 1:].float().log_softmax(-1)
            rows = lower(ids, orders).float()
            got = upper.logits(upper(rows)[there])[:, 1:].float().log_softmax(-1)
        kl = F.kl_div(got, want, reduction="batchmean", log_target=True)
        late = there & (torch.arange(ids.shape[1]) > 0)
        return kl + SPLIT_WEIGHT * mean_square((rows - true)[late]) / spread_of(true[late])

    groups = [
        ParameterGroup(differences, plan.lr),
        ParameterGroup({"fold": lower.fold, "shift": lower.shift}, plan.fold_lr),
    ]
    run_phase(groups, plan.steps, loss_of, report, clip=1.0, keeper=keeper)
    for _, layer, matrix in places:
        setattr(layer, matrix, getattr(layer, matrix).merged())
    set_first(parts)


def drawn(
    texts: Sequence[Encoded], tokens: int, n: int, seed: tuple[int, int]
) -> tuple[Tensor, Tensor | None]:
    """A step's ids [B, T], and the orders to look up, int64 [B, T]; None: the longest.

    They depend on `seed` alone.
    """
    rng = random.Random(repr(seed))
    some: list[Encoded] = []
    left = GROUPS * tokens
    while left > 0:
        some.append(rng.choice(texts))
        left -= len(some[-1])
    ids = pad_ids([text.ids for text in one_group(some, tokens, rng)])
    if rng.random() < 0.5:
        return ids, None
    draw = torch.Generator().manual_seed(rng.getrandbits(48))
    orders = torch.ones_like(ids)
    for order in range(2, n + 1):
        share = rng.choice((0.3, 0.6, 0.8)) if order == n else 0.8
        orders[torch.rand(ids.shape, generator=draw) < share] = order
    return ids, orders


def _places(parts: tuple[CausalLower, UpperDecoder]) -> Iterator[tuple[str, DecoderLayer, str]]:
    """The matrices of all layers: a name of each, its layer, its attribute there."""
    for part, layers in (("lower", parts[0].layers), ("upper", parts[1].layers)):
        for i, layer in enumerate(layers):
            assert isinstance(layer, DecoderLayer)
            for matrix in MATRICES:
                yield f"{part}.layers.{i}.{matrix}", layer, matrix
