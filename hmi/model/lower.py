"""The lower layers made local: what a PLOT stores, computed.

A window of n tokens passes the lower layers alone, at fixed positions, with two constant key/value slots a
layer (the mean key and value of [CLS] and [SEP] over full texts, where lower heads park their attention). One
matrix a role, W_r, is folded into the rows, so that aggregation over the overlapping windows is a sum, for
trigrams:

    h_i = W_1 H_i[1] + W_2 H_{i-1}[2] + W_0 H_{i+1}[0]   (+ position and type bias, `InputBias`)

Relative attention (MPNet) is exact between the tokens of a window. A slot stands for a token that is near for
some tokens and far for others: its bias is the mean of what full texts give.

Source: HMI section 4, SkipBERT, and this project's docs/design/0001-first-shape.md. No LayerNorm follows: the
matrices are fitted by ridge regression to the true hidden states, which a normalised mean approximates worse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmi.model.encoder import Embeddings, EncoderLayer, attention, heads_first, no_delta
from hmi.model.relative import relative_bias
from hmi.model.shape import EncoderShape

SLOTS = 2
POSITION_BASE = 16
"""A window's tokens sit at positions 16, 17, …: past the start, where BERT's position vectors are unusual."""
LARGEST_KEY = 1 << 62


def centre(n: int) -> int:
    """The role of a window's own token: as many tokens stand before it as after it, or one less."""
    return (n - 1) // 2


@dataclass(frozen=True)
class Cover:
    """Which n-grams are stored, by order: bool [B, T] each. For the longest order, an element stands for the
    window around its token; for the other orders, for the n-gram that begins at its token. Unigrams are
    always stored."""

    at_hand: Mapping[int, Tensor]

    def of(self, order: int, place: int, n: int) -> Tensor:
        """Whether the n-gram of `order` at `place` in the window around each token is at hand: bool [B·T]."""
        held = self.at_hand[order]
        return (held if order == n else shifted(held[..., None], centre(n) - place)[..., 0]).reshape(-1)


class LocalLower(nn.Module):
    """The lower layers over single n-grams, for windows of n tokens."""

    slot_keys: Tensor
    slot_values: Tensor

    def __init__(self, shape: EncoderShape, depth: int, cls_id: int, n: int = 3) -> None:
        super().__init__()
        self.shape, self.depth, self.cls_id, self.n = shape, depth, cls_id, n
        self.embeddings = Embeddings(shape)
        self.layers = nn.ModuleList(EncoderLayer(shape) for _ in range(depth))
        self.slot_keys = nn.Parameter(torch.zeros(depth, SLOTS, shape.dim))
        self.slot_values = nn.Parameter(torch.zeros(depth, SLOTS, shape.dim))
        self.slot_bias = nn.Parameter(torch.zeros(depth, SLOTS, shape.heads)) if shape.buckets else None
        self.fold = nn.Parameter(torch.eye(shape.dim).repeat(n, 1, 1) / n)

    def hidden(self, windows: Tensor, first_role: int = 0) -> Tensor:
        """windows [m, w] int64, 0 = no neighbour -> hidden states after the lower layers [m, w, dim].

        The first column stands at `first_role`: a shorter n-gram may come without its empty roles, which
        attention would only mask away.
        """
        present = windows > 0
        roles = torch.arange(first_role, first_role + windows.shape[1])
        positions = (roles + POSITION_BASE).expand_as(windows)
        # A literal [CLS] is at position 0 in every text, so it is here.
        positions = torch.where(windows == self.cls_id, torch.zeros_like(windows), positions)
        x = self.embeddings(windows, positions)
        for i in range(self.depth):
            x = self._layer(i, x, present)
        hidden: Tensor = x * present[..., None]
        return hidden

    def entries(self, windows: Tensor, first_role: int = 0) -> Tensor:
        """windows [m, w] int64 -> their rows with W_r folded in [m, w, dim]; w = n is what a PLOT stores."""
        fold = self.fold[first_role : first_role + windows.shape[1]]
        return torch.einsum("mrd,rde->mre", self.hidden(windows, first_role), fold)

    def ngram_entries(self, ngrams: Tensor) -> Tensor:
        """ngrams [m, k], k ≤ n -> [m, k·(n - k + 1), dim]: all rows of each, one for each of its tokens at
        each of its places in the window, as a PLOT stores them. Of (x, y) where n = 3: x left and y centre in
        (x, y, ·), x centre and y right in (·, x, y)."""
        return torch.cat(
            [self.entries(ngrams, place) for place in range(self.n - ngrams.shape[1] + 1)], dim=1
        )

    def forward(self, ids: Tensor, cover: Cover | None = None) -> Tensor:
        """ids [B, T] int64 padded with 0 -> aggregated rows [B, T, dim], every n-gram computed here.

        Without `cover` every window is at hand. With it, the rest is filled as the store fills it: the slow
        obvious form of back-off, and what training sees when neighbours are dropped.
        """
        windows = ngram_windows(ids, self.n).reshape(-1, self.n)
        rows = self._unique_entries(windows) if cover is None else self._filled(windows, cover)
        # A window centred on padding holds the text's last tokens as its neighbours: it is no n-gram of it.
        return aggregate(rows.view(*ids.shape, self.n, -1) * (ids > 0)[..., None, None])

    def _filled(self, windows: Tensor, cover: Cover) -> Tensor:
        """windows [m, n] -> rows [m, n, dim]: of the longest n-grams at hand; of several at a role, the
        mean."""
        parts, weights, at = _parts_of(windows, cover, self.n)
        rows = self._unique_entries(parts) * weights[..., None]
        return rows.new_zeros(*windows.shape, rows.shape[-1]).index_add_(0, at, rows)

    def _unique_entries(self, windows: Tensor) -> Tensor:
        which, first = unique_rows(windows, self.shape.vocab)
        return self.entries(windows[first])[which]

    def _layer(self, index: int, x: Tensor, present: Tensor) -> Tensor:
        layer = self.layers[index]
        assert isinstance(layer, EncoderLayer)
        q, k, v = layer.project(x)
        m = len(x)
        k = torch.cat([k, self.slot_keys[index].expand(m, -1, -1).to(k.dtype)], dim=1)
        v = torch.cat([v, self.slot_values[index].expand(m, -1, -1).to(v.dtype)], dim=1)
        h = self.shape.heads
        mask = F.pad(present, (0, SLOTS), value=True)[:, None, None, :]
        if layer.relative is not None and self.slot_bias is not None:
            slots = self.slot_bias[index].t()[:, None].expand(-1, x.shape[1], -1)
            bias = torch.cat([relative_bias(layer.relative, x.shape[1]), slots], dim=-1)
            mask = torch.where(mask, bias.to(q.dtype), -torch.inf)
        y = attention(heads_first(q, h), heads_first(k, h), heads_first(v, h), mask)
        return layer.finish(x, y.transpose(1, 2).flatten(-2), no_delta)


def ngram_windows(ids: Tensor, n: int) -> Tensor:
    """ids [B, T] padded with 0 -> the window around each token [B, T, n]; a missing neighbour is 0."""
    return F.pad(ids, (centre(n), n - 1 - centre(n))).unfold(1, n, 1)


def aggregate(rows: Tensor) -> Tensor:
    """rows [B, T, n, dim] of the window around each token -> summed over the overlaps [B, T, dim]."""
    n = rows.shape[2]
    total = rows[:, :, centre(n)]
    for role in range(n):
        if role != centre(n):
            total = total + shifted(rows[:, :, role], role - centre(n))
    return total


def shifted(x: Tensor, by: int) -> Tensor:
    """x [B, T, d] -> y with y[:, i] = x[:, i - by], and 0 where that is outside."""
    length = x.shape[1]
    return F.pad(x, (0, 0, by, 0))[:, :length] if by > 0 else F.pad(x, (0, 0, 0, -by))[:, -by : length - by]


def unique_rows(windows: Tensor, vocab: int) -> tuple[Tensor, Tensor]:
    """windows [m, w] of ids below `vocab` -> which distinct one each is [m], and where one of each is
    [distinct]."""
    keys, bound = windows[:, 0], vocab
    for column in windows.unbind(1)[1:]:
        if bound * vocab > LARGEST_KEY:  # number the distinct ones so far, or a key of five ids would not fit
            keys = torch.unique(keys, return_inverse=True)[1]
            bound = len(windows)
        keys, bound = keys * vocab + column, bound * vocab
    distinct, which = torch.unique(keys, return_inverse=True)
    return which, torch.empty_like(distinct).scatter_(0, which, torch.arange(len(windows)))


def _parts_of(windows: Tensor, cover: Cover, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """The n-grams that fill the windows [m, n]: parts [p, n] (0 outside the part's n-gram), the weight of
    each of its roles [p, n], and the window that each belongs to [p]."""
    inside = windows > 0
    filled = torch.zeros_like(inside)
    parts, weights, at = [], [], []
    for order in range(n, 0, -1):
        masks = [_role_mask(place, order, n) for place in range(n - order + 1)]
        used = [
            _usable(place, order, n, inside, cover) & ~filled[:, mask].all(1)
            for place, mask in enumerate(masks)
        ]
        covered = torch.stack([use[:, None] & mask for use, mask in zip(used, masks, strict=True)]).sum(0)
        share = torch.where(filled, 0.0, 1.0 / covered.clamp(min=1))
        for use, mask in zip(used, masks, strict=True):
            rows = use.nonzero()[:, 0]
            parts.append(windows[rows] * mask)
            weights.append(share[rows] * mask)
            at.append(rows)
        filled = filled | (covered > 0)
    return torch.cat(parts), torch.cat(weights), torch.cat(at)


def _role_mask(place: int, order: int, n: int) -> Tensor:
    roles = torch.arange(n)
    return (roles >= place) & (roles < place + order)


def _usable(place: int, order: int, n: int, inside: Tensor, cover: Cover) -> Tensor:
    """Whether the n-gram at `place` of each window is at hand; a shorter one must lie inside the text."""
    if order == n:
        return cover.of(order, place, n)
    whole = inside[:, place : place + order].all(1)
    return whole if order == 1 else whole & cover.of(order, place, n)


class InputBias(nn.Module):
    """The part of a state that depends on a token's position and not on its n-gram: pos2[i] + type2[type],
    added after look-up.

    For a source without token types, type2 learns here to mark the second text.
    """

    def __init__(self, shape: EncoderShape) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.zeros(shape.positions, shape.dim))
        self.token_type = nn.Parameter(torch.zeros(max(2, shape.types), shape.dim))

    def forward(self, positions: Tensor, types: Tensor) -> Tensor:
        """positions and types [...] int64 -> [..., dim]; type 0 is part of the n-grams and adds nothing."""
        typed = torch.where((types > 0)[..., None], self.token_type[types], torch.zeros(()))
        return self.position[positions] + typed
