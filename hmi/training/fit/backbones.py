"""Backbones, which compute the head's input from a batch of rows.

The one that is served is a tenant's module in frozen upper layers. The others exist for comparison:
upper layers fine-tuned whole, a whole encoder fine-tuned (also the teacher), a frozen encoder.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmi.model.network.encoder import Attend, Encoder, attend_padded, no_delta
from hmi.model.tenant.modules import TenantModule
from hmi.model.text.batching import pad_ids, pad_rows
from hmi.model.text.lexical import Bags
from hmi.training.fit.quick_layers import Changed, attend_quickly, padded_to, quick_layers

Features = Callable[[Sequence[int]], list[Tensor]]
"""Indices of rows -> the backbone's input for each: states [T_i, dim] for upper layers, ids int64
[T_i] for an encoder."""


@dataclass(frozen=True)
class Examples:
    """Tokenised rows, or windows of them, whose features are computed on demand. `targets[i]`: row
    i's target, as its task's loss takes it."""

    lengths: list[int]
    types: list[list[int]]
    """Token types: 0 for a token of a pair's first text, 1 for one of its second."""
    features: Features
    targets: Sequence[Sequence[float]]
    bags: Callable[[Sequence[int]], list[Bags]] | None = None
    """Indices of rows -> their lexical features; None if those are not trained."""

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True)
class Hidden:
    """The states that a head reads. `last` [B, T, dim] is the last layer's output ([B, 1, dim] if only [CLS]
    was computed), `before` [B, T, dim] its input; types int64 [B, T], mask bool [B, T]."""

    last: Tensor
    before: Tensor
    types: Tensor
    mask: Tensor


Watch = Callable[[Sequence[int], int, Tensor, Tensor, Tensor], None]
"""Sees the rows that enter each layer: (indices of the batch's texts, layer, x [B, T, dim], types int64
[B, T], mask bool [B, T])."""


class Backbone(Protocol):
    """Computes the states of a batch. `trained` is the part that is trained and kept; None if
    there is none."""

    @property
    def trained(self) -> nn.Module | None: ...

    def __call__(
        self, examples: Examples, rows: Sequence[int], *, cls_only: bool, dropout: float
    ) -> Hidden: ...


class ModuleBackbone:
    """Shared, frozen upper layers with one tenant's module. Features are [T_i, dim].

    Training, and predictions in bf16, run through `quick_layers`; the reference arithmetic, fp32 without
    gradients, runs through the layers themselves.
    """

    def __init__(
        self, upper: nn.ModuleList, module: TenantModule, heads: int, watch: Watch | None = None
    ) -> None:
        self.upper, self.module, self.heads, self.watch = upper, module, heads, watch
        self._quick: dict[bool, list[Changed]] = {}  # whether in bf16 -> the layers

    @property
    def trained(self) -> nn.Module:
        return self.module

    def __call__(self, examples: Examples, rows: Sequence[int], *, cls_only: bool, dropout: float) -> Hidden:
        bf16 = torch.is_autocast_enabled("cpu")
        if self.watch is None and (bf16 or torch.is_grad_enabled()):
            if bf16 not in self._quick:
                self._quick[bf16] = quick_layers(self.upper, self.module, bf16=bf16)
            batch = _padded(examples, rows, padded_to(max(examples.lengths[i] for i in rows)))
            return _forward_layers(self._quick[bf16], attend_quickly, self.heads, batch, cls_only, dropout)
        layers = [(layer, self.module.delta(i)) for i, layer in enumerate(self.upper)]
        batch = _padded(examples, rows)
        return _forward_layers(layers, attend_padded, self.heads, batch, cls_only, dropout, self.watch)

    def watched(self, watch: Watch) -> ModuleBackbone:
        """The same backbone, which also shows `watch` the rows that enter each layer."""
        return ModuleBackbone(self.upper, self.module, self.heads, watch)


class PromptBackbone:
    """Shared, frozen upper layers with one tenant's frozen module and a set of prompts that is trained.

    Before each layer the prompts stand after [CLS]; no head sees them. Features are [T_i, dim].
    """

    def __init__(self, frozen: ModuleBackbone, prompts: Tensor) -> None:
        """prompts: [layers, count, dim] to start from."""
        self.frozen, self._count = frozen, prompts.shape[1]
        self.trained = nn.Module()
        self.trained.register_parameter(str(self._count), nn.Parameter(prompts.clone()))

    @property
    def prompts(self) -> Tensor:
        return self.trained.get_parameter(str(self._count))

    def __call__(self, examples: Examples, rows: Sequence[int], *, cls_only: bool, dropout: float) -> Hidden:
        frozen = self.frozen
        layers = [(layer, frozen.module.delta(i)) for i, layer in enumerate(frozen.upper)]
        batch = _padded(examples, rows)
        return _forward_layers(
            layers, attend_padded, frozen.heads, batch, cls_only, dropout, prompts=self.prompts
        )


class UpperBackbone:
    """Upper layers, fine-tuned whole. Features are [T_i, dim]."""

    def __init__(self, upper: nn.ModuleList, heads: int, *, copied: bool = True) -> None:
        """copied: tune a copy of the layers, else the layers themselves."""
        layers = copy.deepcopy(upper) if copied else upper
        self.trained, self.heads = layers.requires_grad_(True), heads

    def __call__(self, examples: Examples, rows: Sequence[int], *, cls_only: bool, dropout: float) -> Hidden:
        layers = [(layer, no_delta) for layer in self.trained]
        return _forward_layers(layers, attend_padded, self.heads, _padded(examples, rows), cls_only, dropout)


class EncoderBackbone:
    """A whole encoder, fine-tuned. Features are token ids."""

    def __init__(self, encoder: Encoder, *, copied: bool = True) -> None:
        """copied: tune a copy of the encoder, else the encoder itself."""
        self.trained = (copy.deepcopy(encoder) if copied else encoder).requires_grad_(True)

    def __call__(self, examples: Examples, rows: Sequence[int], *, cls_only: bool, dropout: float) -> Hidden:
        ids, types, mask = _padded_ids(examples, rows)
        last = self.trained(ids, mask, types, dropout=dropout)
        return Hidden(last, last, types, mask)


class FrozenBackbone:
    """A backbone without layers: the features [T_i, dim], a frozen encoder's last states, go
    straight to the head."""

    trained = None

    def __call__(self, examples: Examples, rows: Sequence[int], *, cls_only: bool, dropout: float) -> Hidden:
        x, mask = pad_rows(examples.features(rows))
        return Hidden(x, x, pad_ids([examples.types[i] for i in rows]), mask)


def _padded_ids(examples: Examples, rows: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Ids and types int64 [B, T] and the token mask bool [B, T] of rows whose features are token ids."""
    ids = pad_ids([x.tolist() for x in examples.features(rows)])
    types = pad_ids([examples.types[i] for i in rows])
    lengths = torch.tensor([examples.lengths[i] for i in rows])
    return ids, types, torch.arange(ids.shape[1])[None] < lengths[:, None]


@dataclass(frozen=True)
class _Padded:
    """A batch: the indices of its texts, their features [B, T, dim], types int64 [B, T], mask bool [B, T]."""

    rows: Sequence[int]
    x: Tensor
    types: Tensor
    mask: Tensor


def _padded(examples: Examples, rows: Sequence[int], multiple: int = 1) -> _Padded:
    x, mask = pad_rows(examples.features(rows), multiple)
    return _Padded(rows, x, pad_ids([examples.types[i] for i in rows], multiple), mask)


def _forward_layers(
    layers: Sequence[Changed],
    attends: Callable[[Tensor, int], Attend],
    heads: int,
    batch: _Padded,
    cls_only: bool,
    dropout: float,
    watch: Watch | None = None,
    prompts: Tensor | None = None,
) -> Hidden:
    x, mask = batch.x, batch.mask
    count = 0 if prompts is None else prompts.shape[1]
    attend = attends(F.pad(mask, (count, 0), value=True), heads)
    before = x
    for i, (layer, delta) in enumerate(layers):
        before = x
        if watch is not None:
            watch(batch.rows, i, x, batch.types, mask)
        last = cls_only and i == len(layers) - 1
        entering = x if prompts is None else _prompted(x, prompts[i])
        x = layer(entering, attend, delta, queries=_first_row if last else None, dropout=dropout)
        if count and not last:
            x = torch.cat([x[:, :1], x[:, 1 + count :]], dim=1)
    return Hidden(x, before, batch.types, mask)


def _prompted(x: Tensor, prompts: Tensor) -> Tensor:
    """x [B, T, dim] with the prompts [count, dim] after each text's first row: [B, T + count, dim]."""
    return torch.cat([x[:, :1], prompts.to(x.dtype).expand(len(x), -1, -1), x[:, 1:]], dim=1)


def _first_row(x: Tensor) -> Tensor:
    return x[:, :1]
