"""The local lower layers, which compute the entries that a PLOT stores.

A window of n tokens passes through the lower layers by itself, at fixed positions. In each layer it also
attends to two constant key/value slots: the mean key and value of [CLS] and of [SEP] over full texts, since
many heads of lower layers put most of their attention on these. A token's state is the sum over the windows
that contain it, with one matrix W_r for each role r in a window. For trigrams:

    h_i = W_1 H_i[1] + W_2 H_{i-1}[2] + W_0 H_{i+1}[0]   (+ position and type bias, `InputBias`)

An entry's rows already include W_r. Relative attention (MPNet) is exact between the tokens of a window. A
slot's distance differs from token to token, so its relative bias is the mean over full texts.

Without lower layers (depth 0, a root of split 0) a window is one token, and its row the word's embedding. A
LayerNorm follows the sum with the biases. So the upper layers, which are then all layers, get what they get
in the source.

Sources: HMI section 4, SkipBERT, docs/design/0001-first-shape.md. No LayerNorm follows the
sum of n-grams' rows: W_r is fitted to the true hidden states by ridge regression, which
approximates them better than a normalised mean does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from hmi.model.network.encoder import EmbeddingLayer, EncoderLayer, attention, heads_first, no_delta
from hmi.model.network.relative import relative_bias
from hmi.model.network.shape import EncoderShape

SLOTS = 2
"""The slots of a layer: one for [CLS], one for [SEP]."""
POSITION_BASE = 16
"""The position of a window's first token. BERT's position vectors are unusual at the start of a text."""
LARGEST_KEY = 1 << 62
"""The bound that `unique_rows` keeps its int64 keys below."""


def centre(n: int) -> int:
    """The role of a window's own token: (n - 1) // 2, the left one of two middle tokens if n is even."""
    return (n - 1) // 2


@dataclass(frozen=True)
class Cover:
    """The n-grams of a batch that count as stored. Unigrams always do."""

    stored: Mapping[int, Tensor]
    """By order, bool [B, T]. For the longest order, element t describes the window around token t; for
    shorter orders, the n-gram that starts at token t."""

    def of(self, order: int, place: int, n: int) -> Tensor:
        """For each token, whether the n-gram of `order` at `place` in its window is stored: bool [B·T]."""
        stored = self.stored[order]
        return (stored if order == n else shifted(stored[..., None], centre(n) - place)[..., 0]).reshape(-1)


class LocalLower(nn.Module):
    """The lower layers, applied to single windows of n tokens."""

    window: Final = "centred"
    slot_keys: Tensor
    slot_values: Tensor

    def __init__(self, shape: EncoderShape, depth: int, cls_id: int, n: int = 3) -> None:
        super().__init__()
        self.shape, self.depth, self.cls_id, self.n = shape, depth, cls_id, n
        self.embeddings = EmbeddingLayer(shape)
        self.layers = nn.ModuleList(EncoderLayer(shape) for _ in range(depth))
        self.slot_keys = nn.Parameter(torch.zeros(depth, SLOTS, shape.dim))
        self.slot_values = nn.Parameter(torch.zeros(depth, SLOTS, shape.dim))
        self.slot_bias = nn.Parameter(torch.zeros(depth, SLOTS, shape.heads)) if shape.buckets else None
        self.fold = nn.Parameter(torch.eye(shape.dim).repeat(n, 1, 1) / n)

    def hidden(self, windows: Tensor, first_role: int = 0) -> Tensor:
        """windows [m, w] int64, 0 for no token -> hidden states after the lower layers [m, w, dim].

        The first column has role `first_role`. A shorter n-gram may thus be given without its empty roles,
        which attention would mask anyway.
        """
        present = windows > 0
        roles = torch.arange(first_role, first_role + windows.shape[1])
        positions = (roles + POSITION_BASE).expand_as(windows)
        # [CLS] has position 0 in every text, and so in every window.
        positions = torch.where(windows == self.cls_id, torch.zeros_like(windows), positions)
        if not self.depth:
            words: Tensor = self.embeddings.word(windows) * present[..., None]
            return words
        x = self.embeddings(windows, positions).to(working_type())
        for i in range(self.depth):
            x = self._layer(i, x, present)
        hidden: Tensor = x * present[..., None]
        return hidden

    def entries(self, windows: Tensor, first_role: int = 0) -> Tensor:
        """windows [m, w] int64 -> their states times W_r [m, w, dim]; with w = n, the entries of a PLOT."""
        fold = self.fold[first_role : first_role + windows.shape[1]]
        return torch.einsum("mrd,rde->mre", self.hidden(windows, first_role), fold)

    def ngram_entries(self, ngrams: Tensor) -> Tensor:
        """ngrams [m, k], k ≤ n -> entries as a PLOT stores them [m, k·(n - k + 1), dim].

        An entry has a row for each place of the n-gram in the window and each of its tokens. For (x, y)
        with n = 3: x left and y centre in (x, y, ·), then x centre and y right in (·, x, y).
        """
        return torch.cat(
            [self.entries(ngrams, place) for place in range(self.n - ngrams.shape[1] + 1)], dim=1
        )

    def forward(self, ids: Tensor, cover: Cover | None = None) -> Tensor:
        """ids [B, T] int64 padded with 0 -> aggregated rows [B, T, dim], without a PLOT.

        Without `cover` every window is computed. With it, windows that are not stored are filled from
        shorter n-grams by the same rules as in the store. Training uses this to drop neighbours; it is also
        a slow, plain reference of back-off.
        """
        windows = ngram_windows(ids, self.n).reshape(-1, self.n)
        rows = self._unique_entries(windows) if cover is None else self._filled(windows, cover)
        # A window centred on padding may contain the text's last tokens, but is no n-gram of the text.
        return aggregate(rows.view(*ids.shape, self.n, -1) * (ids > 0)[..., None, None])

    def _filled(self, windows: Tensor, cover: Cover) -> Tensor:
        """windows [m, n] -> rows [m, n, dim] from the longest n-grams stored: the mean if
        several cover a role."""
        parts, weights, at = _parts_of(windows, cover, self.n)
        rows, owners = [], []
        for some, roles in _by_roles(parts):
            weighted = self._unique_entries(parts[some, roles], roles.start) * weights[some, roles, None]
            rows.append(F.pad(weighted, (0, 0, roles.start, self.n - roles.stop)))
            owners.append(at[some])
        together = torch.cat(rows)
        filled = together.new_zeros(*windows.shape, together.shape[-1])
        return filled.index_add_(0, torch.cat(owners), together)

    def _unique_entries(self, windows: Tensor, first_role: int = 0) -> Tensor:
        which, first = unique_rows(windows, self.shape.vocab)
        return self.entries(windows[first], first_role)[which]

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
    """ids [B, T] padded with 0 -> the window around each token [B, T, n], 0 beyond the ends."""
    return F.pad(ids, (centre(n), n - 1 - centre(n))).unfold(1, n, 1)


def aggregate(rows: Tensor) -> Tensor:
    """rows [B, T, n, dim] of each token's window -> the sum over the windows that contain
    each token [B, T, dim]."""
    n = rows.shape[2]
    total = rows[:, :, centre(n)]
    for role in range(n):
        if role != centre(n):
            total = total + shifted(rows[:, :, role], role - centre(n))
    return total


def shifted(x: Tensor, by: int) -> Tensor:
    """x [B, T, d] -> y with y[:, i] = x[:, i - by], or 0 if i - by lies outside."""
    length = x.shape[1]
    return F.pad(x, (0, 0, by, 0))[:, :length] if by > 0 else F.pad(x, (0, 0, 0, -by))[:, -by : length - by]


def unique_rows(windows: Tensor, vocab: int) -> tuple[Tensor, Tensor]:
    """Number the distinct rows of windows [m, w], whose ids are below `vocab`.

    Returns each row's number [m], and the index of one row with each number [distinct].
    """
    keys, bound = windows[:, 0], vocab
    for column in windows.unbind(1)[1:]:
        if bound * vocab > LARGEST_KEY:  # renumber the keys, since one of five ids would not fit into 64 bits
            keys = torch.unique(keys, return_inverse=True)[1]
            bound = len(windows)
        keys, bound = keys * vocab + column, bound * vocab
    distinct, which = torch.unique(keys, return_inverse=True)
    return which, torch.empty_like(distinct).scatter_(0, which, torch.arange(len(windows)))


def _parts_of(windows: Tensor, cover: Cover, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """The n-grams that fill windows [m, n] under `cover`.

    Returns parts [p, n], each an n-gram with 0 in the other roles; the weights of their roles [p, n]; and
    the window that each part belongs to [p].
    """
    inside = windows > 0
    filled = torch.zeros_like(inside)
    parts, weights, at = [], [], []
    for order in range(n, 0, -1):
        masks = [_role_mask(place, order, n) for place in range(n - order + 1)]
        used = [
            _is_stored(place, order, n, inside, cover) & ~filled[:, mask].all(1)
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


def _by_roles(parts: Tensor) -> Iterator[tuple[Tensor, slice]]:
    """The rows of parts [p, n] that have tokens in the same roles, with these roles, so that no empty role is
    computed: most parts of a text with misses have one token or two."""
    inside = parts > 0
    roles = torch.arange(parts.shape[1])
    first = torch.where(inside, roles, parts.shape[1]).amin(1)
    last = torch.where(inside, roles, -1).amax(1)
    for a, b in torch.unique(torch.stack([first, last], 1)[last >= 0], dim=0).tolist():
        yield ((first == a) & (last == b)).nonzero()[:, 0], slice(a, b + 1)


def working_type() -> torch.dtype:
    """The number format of states between layers: that of the matrix products around this call. With states
    in fp32, which are converted for each product, a step of training in bf16 takes a quarter longer."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32


def _role_mask(place: int, order: int, n: int) -> Tensor:
    roles = torch.arange(n)
    return (roles >= place) & (roles < place + order)


def _is_stored(place: int, order: int, n: int, inside: Tensor, cover: Cover) -> Tensor:
    """Return whether each window's n-gram at `place` is stored. Shorter ones must also lie inside the
    text."""
    if order == n:
        return cover.of(order, place, n)
    whole = inside[:, place : place + order].all(1)
    return whole if order == 1 else whole & cover.of(order, place, n)


class InputBias(nn.Module):
    """A bias for each position and token type, added to the rows after the look-up.

    Type 0 is part of the n-grams' entries and has none. If the source has no token types, the bias of type
    1 is learnt and marks the second text. `norm` is the embeddings' LayerNorm if there are no lower layers,
    else None.
    """

    def __init__(self, shape: EncoderShape, split: int) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.zeros(shape.positions, shape.dim))
        self.token_type = nn.Parameter(torch.zeros(max(2, shape.types), shape.dim))
        self.norm = None if split else nn.LayerNorm(shape.dim, eps=shape.eps)

    @torch.no_grad()
    def embed(self, embeddings: EmbeddingLayer) -> None:
        """Take over all but the words' vectors, for a root without lower layers."""
        self.position.copy_(embeddings.position.weight)
        if embeddings.token_type is not None:
            first, *others = embeddings.token_type.weight
            self.position.add_(first)
            for bias, vector in zip(self.token_type[1:], others, strict=False):
                bias.copy_(vector - first)
        assert self.norm is not None
        self.norm.load_state_dict(embeddings.ln.state_dict())

    def forward(self, rows: Tensor, positions: Tensor, types: Tensor) -> Tensor:
        """rows [..., dim], positions and types [...] int64 -> the input of the upper layers [..., dim]."""
        typed = torch.where((types > 0)[..., None], self.token_type[types], torch.zeros(()))
        added = rows + (self.position[positions] + typed)
        normed: Tensor = added if self.norm is None else self.norm(added)
        return normed

    def means(self, types: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """The mean of what `add_packed` adds to each text's rows, [texts, dim]. types: as there.

        After the LayerNorm a row is no sum from which the bias could be taken again: the means are 0 then.
        """
        if self.norm is not None:
            return np.zeros((len(types), self.position.shape[1]), np.float32)
        position, second = self.position.detach().numpy(), self.token_type[1].detach().numpy()
        ones = np.ones(max(map(len, types)), np.float32)
        out = np.empty((len(types), position.shape[1]), np.float32)
        for mean, each in zip(out, types, strict=True):
            np.dot(ones[: len(each)], position[: len(each)], out=mean)
            if each[-1]:  # a pair
                mean += second * (len(each) - each.index(1))
            mean /= len(each)
        return out

    def add_packed(self, rows: Tensor, types: Sequence[Sequence[int]]) -> None:
        """Do to packed rows [tokens, dim] in place what `forward` does, bit by bit the same.

        types: of each text, ascending. Slices are added, so that no row is gathered.
        """
        start = 0
        for each in types:
            first = each.index(1) if 1 in each else len(each)
            rows[start : start + first] += self.position[:first]
            if first < len(each):
                rows[start + first : start + len(each)] += (
                    self.position[first : len(each)] + self.token_type[1]
                )
            start += len(each)
        if self.norm is not None:
            rows.copy_(self.norm(rows))
