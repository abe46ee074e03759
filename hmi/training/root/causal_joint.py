"""Trains all layers of a language model's root together, as `hmi.training.root.joint` does for an encoder's.

The local lower layers and the upper ones follow each other towards the source's next tokens. All that
changes is small enough to ship: a low-rank difference for each matrix, a matrix and a bias for each order."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
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
from hmi.training.root.joint import SPLIT_WEIGHT
from hmi.training.root.phases import Keeper, ParameterGroup, run_phase

RANK = 16
MATRICES = ("qkv", "o", "fi", "fo")


COMPLETE = 0.5
"""The share of steps in which no n-gram is missing."""


@dataclass(frozen=True)
class CausalJointPlan:
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


def train_causal_jointly(
    parts: tuple[CausalLower, UpperDecoder],
    teacher: Decoder,
    texts: Sequence[Encoded],
    plan: CausalJointPlan,
    report: StepReport,
    *,
    bf16: bool = False,
    keeper: Keeper | None = None,
) -> None:
    """Train `parts` in place, for `plan.steps` steps. texts: of more than two tokens each.

    The loss is KL in nats from the source's next token to the root's, over all words, plus, with
    SPLIT_WEIGHT, the error at the split. In half of the steps a text is looked up as a PLOT of all other
    texts would do it, by shorter n-grams where it lacks long ones. So the layers learn to do without them
    where they will be missing.
    """
    lower, upper = parts
    for part in parts:
        part.requires_grad_(False)
    known = known_to_others(texts, lower.n)
    draw = torch.Generator().manual_seed(plan.seed)
    places = list(_places(parts))
    differences: dict[str, nn.Parameter] = {}
    for name, layer, matrix in places:
        made = LowRank(getattr(layer, matrix), draw)
        setattr(layer, matrix, made)
        differences |= {f"{name}.down": made.down, f"{name}.up": made.up}

    def loss_of(step: int) -> Tensor:
        ids, orders = drawn(known, plan.tokens, (plan.seed, step))
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


@dataclass(frozen=True)
class Known:
    """A text to learn from, and the order of the longest n-gram that ends at each token and that another text
    holds, too."""

    ids: list[int]
    orders: list[int]

    def __len__(self) -> int:
        return len(self.ids)


def known_to_others(texts: Sequence[Encoded], n: int) -> list[Known]:
    """For each text: how far a PLOT of all other texts would know it. Begin tokens are of order 1."""
    ids = np.concatenate([text.ids for text in texts]).astype(np.int64)
    lengths = np.array([len(text) for text in texts])
    text_of = np.repeat(np.arange(len(texts)), lengths)
    at = np.arange(len(ids)) - np.repeat(lengths.cumsum() - lengths, lengths)
    orders = np.ones(len(ids), np.int64)
    word = np.unique(ids, return_inverse=True)[1]
    ngram = word  # one number for each n-gram of this order that ends at a token
    for order in range(2, n + 1):
        longer = np.roll(ngram, 1) * (1 + word.max()) + word
        ngram = np.unique(longer, return_inverse=True)[1]
        inside = np.flatnonzero(at >= order)  # n-grams begin after the begin token
        first = np.full(1 + ngram.max(), len(texts))
        last = np.full(1 + ngram.max(), -1)
        np.minimum.at(first, ngram[inside], text_of[inside])
        np.maximum.at(last, ngram[inside], text_of[inside])
        orders[inside[(first < last)[ngram[inside]]]] = order
    parts = zip(np.split(ids, lengths.cumsum()[:-1]), np.split(orders, lengths.cumsum()[:-1]), strict=True)
    return [Known(some.tolist(), found.tolist()) for some, found in parts]


def drawn(texts: Sequence[Known], tokens: int, seed: tuple[int, int]) -> tuple[Tensor, Tensor | None]:
    """A step's ids [B, T], and the orders to look up, int64 [B, T]; None: the longest.

    They depend on `seed` alone.
    """
    rng = random.Random(repr(seed))
    some: list[Known] = []
    left = GROUPS * tokens
    while left > 0:
        some.append(rng.choice(texts))
        left -= len(some[-1])
    group = one_group(some, tokens, rng)
    ids = pad_ids([text.ids for text in group])
    return ids, None if rng.random() < COMPLETE else pad_ids([text.orders for text in group])


def _places(parts: tuple[CausalLower, UpperDecoder]) -> Iterator[tuple[str, DecoderLayer, str]]:
    """The matrices of all layers: a name of each, its layer, its attribute there."""
    for part, layers in (("lower", parts[0].layers), ("upper", parts[1].layers)):
        for i, layer in enumerate(layers):
            assert isinstance(layer, DecoderLayer)
            for matrix in MATRICES:
                yield f"{part}.layers.{i}.{matrix}", layer, matrix
