"""The lower layers made local: what a PLOT stores, computed.

A trigram (a, b, c) passes the lower layers alone, at fixed positions, with two constant key/value slots a layer
(the mean key and value of [CLS] and [SEP] over full texts, where lower heads park their attention). One matrix a
role, W_r, is folded into the rows, so that aggregation over the overlapping trigrams is a sum:

    h_i = W_1 H_i[1] + W_2 H_{i-1}[2] + W_0 H_{i+1}[0]   (+ position and type bias, `InputBias`)

Source: HMI section 4, SkipBERT, and this project's docs/design/0001-first-shape.md. No LayerNorm follows: the
matrices are fitted by ridge regression to the true hidden states, which a normalised mean approximates worse.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmi.model.encoder import Embeddings, EncoderLayer, heads_first, no_delta
from hmi.model.shape import EncoderShape

ROLES = 3
BIGRAM_ROWS = 4
POSITION_BASE = 16
"""Trigram slots sit at positions 16, 17, 18: past the start, where BERT's position vectors are unusual."""


@dataclass(frozen=True)
class Cover:
    """Which n-grams are at hand for each token: bool [N] each. Tokens without a neighbour count it as absent."""

    trigram: Tensor
    left: Tensor
    right: Tensor


class LocalLower(nn.Module):
    """The lower layers over single n-grams."""

    slot_keys: Tensor
    slot_values: Tensor

    def __init__(self, shape: EncoderShape, depth: int, cls_id: int) -> None:
        super().__init__()
        self.shape, self.depth, self.cls_id = shape, depth, cls_id
        self.embeddings = Embeddings(shape)
        self.layers = nn.ModuleList(EncoderLayer(shape) for _ in range(depth))
        self.slot_keys = nn.Parameter(torch.zeros(depth, 2, shape.dim))
        self.slot_values = nn.Parameter(torch.zeros(depth, 2, shape.dim))
        self.fold = nn.Parameter(torch.eye(shape.dim).repeat(ROLES, 1, 1) / ROLES)

    def hidden(self, windows: Tensor, first_role: int = 0) -> Tensor:
        """windows [m, w] int64, 0 = no neighbour -> hidden states after the lower layers [m, w, dim].

        The first column stands at `first_role`: a bigram or unigram may come without its empty roles, which
        attention would only mask away.
        """
        present = windows > 0
        roles = torch.arange(first_role, first_role + windows.shape[1])
        positions = (roles + POSITION_BASE).expand_as(windows)
        # A literal [CLS] is at position 0 in every text, so it is here.
        positions = torch.where(windows == self.cls_id, torch.zeros_like(windows), positions)
        x = self.embeddings(windows, positions)
        for layer, keys, values in zip(self.layers, self.slot_keys, self.slot_values, strict=True):
            x = self._layer(layer, x, present, keys, values)
        hidden: Tensor = x * present[..., None]
        return hidden

    def entries(self, windows: Tensor, first_role: int = 0) -> Tensor:
        """windows [m, w] int64 -> their rows with W_r folded in [m, w, dim]; w = 3 is what a PLOT stores."""
        fold = self.fold[first_role : first_role + windows.shape[1]]
        return torch.einsum("mrd,rde->mre", self.hidden(windows, first_role), fold)

    def bigram_entries(self, bigrams: Tensor) -> Tensor:
        """bigrams [m, 2] (x, y) -> [m, 4, dim]: x left and y centre in (x,y,·), x centre and y right in (·,x,y)."""
        return torch.cat([self.entries(bigrams, 0), self.entries(bigrams, 1)], dim=1)

    def unigram_entries(self, tokens: Tensor) -> Tensor:
        """tokens [m] -> [m, 3, dim]: the token as left neighbour, centre and right neighbour, each alone."""
        return torch.cat([self.entries(tokens[:, None], role) for role in range(ROLES)], dim=1)

    def forward(self, ids: Tensor, cover: Cover | None = None) -> Tensor:
        """ids [B, T] int64 padded with 0 -> aggregated rows [B, T, dim], every n-gram computed here.

        Without `cover` every trigram is at hand. With it, the rest is filled as the store fills it: the slow
        obvious form of back-off, and what training sees when neighbours are dropped.
        """
        rows = self._rows(windows_of(ids).reshape(-1, ROLES), cover).view(*ids.shape, ROLES, -1)
        # A window centred on padding holds the text's last token as its left neighbour: it is no trigram of it.
        return aggregate(rows * (ids > 0)[..., None, None])

    def _rows(self, win: Tensor, cover: Cover | None) -> Tensor:
        if cover is None:
            return self._unique_entries(win)
        a, b, c = win.unbind(1)
        zero = torch.zeros_like(a)
        left, right = cover.left & (a > 0), cover.right & (c > 0)
        tri = cover.trigram[:, None]
        pair_l, pair_r = torch.stack([a, b, zero], 1), torch.stack([zero, b, c], 1)
        alone = torch.stack([zero, b, zero], 1)
        either_l = torch.where(left[:, None], pair_l, torch.where(right[:, None], pair_r, alone))
        either_r = torch.where(right[:, None], pair_r, either_l)
        chosen = torch.stack(
            [
                torch.where(left[:, None], pair_l, torch.stack([a, zero, zero], 1)),
                either_l,
                either_r,
                torch.where(right[:, None], pair_r, torch.stack([zero, zero, c], 1)),
            ]
        )
        e = self._unique_entries(torch.where(tri, win, chosen).flatten(0, 1)).unflatten(0, (4, -1))
        return torch.stack([e[0, :, 0], (e[1, :, 1] + e[2, :, 1]) / 2, e[3, :, 2]], dim=1)

    def _unique_entries(self, win: Tensor) -> Tensor:
        v = self.shape.vocab
        keys, inverse = torch.unique((win[:, 0] * v + win[:, 1]) * v + win[:, 2], return_inverse=True)
        unique = torch.stack([keys // (v * v), keys // v % v, keys % v], dim=1)
        return self.entries(unique)[inverse]

    def _layer(self, layer: nn.Module, x: Tensor, present: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        assert isinstance(layer, EncoderLayer)
        q, k, v = layer.project(x)
        m = len(x)
        k = torch.cat([k, keys.expand(m, -1, -1).to(k.dtype)], dim=1)
        v = torch.cat([v, values.expand(m, -1, -1).to(v.dtype)], dim=1)
        h = self.shape.heads
        mask = F.pad(present, (0, 2), value=True)[:, None, None, :]
        y = F.scaled_dot_product_attention(heads_first(q, h), heads_first(k, h), heads_first(v, h), attn_mask=mask)
        return layer.finish(x, y.transpose(1, 2).flatten(-2), no_delta)


def windows_of(ids: Tensor) -> Tensor:
    """ids [B, T] padded with 0 -> the trigram centred on each token [B, T, 3]; a missing neighbour is 0."""
    return F.pad(ids, (1, 1)).unfold(1, ROLES, 1)


def aggregate(rows: Tensor) -> Tensor:
    """rows [B, T, 3, dim] of the trigram centred on each token -> summed over the overlaps [B, T, dim]."""
    centre, left, right = rows[:, :, 1], rows[:, 1:, 0], rows[:, :-1, 2]
    return centre + F.pad(left, (0, 0, 0, 1)) + F.pad(right, (0, 0, 1, 0))


class InputBias(nn.Module):
    """What depends on where a token stands and not on its n-gram: pos2[i] + type2[type], added after look-up."""

    def __init__(self, shape: EncoderShape) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.zeros(shape.positions, shape.dim))
        self.token_type = nn.Parameter(torch.zeros(shape.types, shape.dim))

    def forward(self, positions: Tensor, types: Tensor) -> Tensor:
        """positions and types [...] int64 -> [..., dim]; type 0 is part of the n-grams and adds nothing."""
        typed = torch.where((types > 0)[..., None], self.token_type[types], torch.zeros(()))
        return self.position[positions] + typed
