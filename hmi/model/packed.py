"""The upper layers over the packed tokens of many tenants: no padding is computed, and no text's rows depend on
another text's. The padded form in `hmi.model.encoder` is its reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmi.model.encoder import Attend, Delta, EncoderLayer, Norm, heads_first
from hmi.model.modules import TenantModule
from hmi.model.prepacked import PackedLinear, padded
from hmi.model.relative import relative_bias

Between = Callable[[], None]
"""Called where one layer has ended and another is to begin: whoever computes may do something else first."""


def nothing() -> None:
    """Of `Between`: go on at once."""


@dataclass(frozen=True)
class Segment:
    """A run of texts [start, end) of one batch that share a module (None: no module)."""

    start: int
    end: int
    module: TenantModule | None


def segments_of(modules: Sequence[TenantModule | None]) -> list[Segment]:
    """Group neighbouring texts with the same module; the batch is sorted by tenant so that runs are long."""
    out: list[Segment] = []
    for i, module in enumerate(modules):
        if out and out[-1].module is module:
            out[-1] = Segment(out[-1].start, i + 1, module)
        else:
            out.append(Segment(i, i + 1, module))
    return out


@torch.inference_mode()
def run_packed(
    upper: nn.ModuleList,
    x: Tensor,
    offsets: Sequence[int],
    modules: Sequence[TenantModule | None],
    heads: int,
    between: Between = nothing,
) -> Tensor:
    """x [tokens, dim] fp32 packed, text i at rows offsets[i]:offsets[i+1], with its tenant's module; every row of the
    last layer [tokens, dim]."""
    return _through(list(upper), _as_counted(upper, x), offsets, segments_of(modules), heads, between)[: len(x)]


@torch.inference_mode()
def run_classified(
    upper: nn.ModuleList,
    x: Tensor,
    offsets: Sequence[int],
    modules: Sequence[TenantModule | None],
    heads: int,
    between: Between = nothing,
) -> tuple[Tensor, Tensor]:
    """The same for classification: ([texts, 2·dim], [tokens, dim]).

    The first is, for each text, the last layer's [CLS] row (one query a text, all keys and values: exact) and the mean
    of the rows that entered the last layer; the second is these rows.
    """
    *below, last = upper
    segments = segments_of(modules)
    whole = _through(below, _as_counted(upper, x), offsets, segments, heads, between)
    between()
    first = last(
        whole,
        attend_first(offsets, heads),
        segment_delta(_token_bounds(segments, offsets), len(below)),
        queries=lambda rows: _as_counted(upper, pick_rows(offsets[:-1])(rows)),
        query_delta=segment_delta([(s.start, s.end, s.module) for s in segments], len(below)),
    )[: len(modules)]
    before = whole[: len(x)]
    means = torch.stack([before[a:b].mean(0) for a, b in pairwise(offsets)])
    return torch.cat([first, means], dim=-1), before


def pack_upper(upper: nn.ModuleList) -> None:
    """Prepare a root's upper layers for serving, in place: see `EncoderLayer.pack`."""
    for i, layer in enumerate(upper):
        assert isinstance(layer, EncoderLayer)
        layer.pack(last=i == len(upper) - 1)


def _as_counted(upper: nn.ModuleList, x: Tensor) -> Tensor:
    """x with rows of zeros up to one of few numbers of rows, where the layers' code is kept for each number."""
    if not any(isinstance(module, PackedLinear) for module in upper.modules()):
        return x
    return F.pad(x, (0, 0, 0, padded(len(x)) - len(x)))


def _through(
    layers: Sequence[nn.Module],
    x: Tensor,
    offsets: Sequence[int],
    segments: Sequence[Segment],
    heads: int,
    between: Between,
) -> Tensor:
    attend, bounds = attend_packed(offsets, heads), _token_bounds(segments, offsets)
    for i, layer in enumerate(layers):
        assert isinstance(layer, EncoderLayer)
        if i:
            between()
        x = layer(x, attend, segment_delta(bounds, i))
    return x


def _token_bounds(segments: Sequence[Segment], offsets: Sequence[int]) -> list[tuple[int, int, TenantModule | None]]:
    return [(offsets[s.start], offsets[s.end], s.module) for s in segments]


def pick_rows(rows: Sequence[int]) -> Callable[[Tensor], Tensor]:
    """A function from packed rows [tokens, dim] to the rows named [len(rows), dim]."""
    index = torch.tensor(rows)
    return lambda x: x[index]


def segment_delta(bounds: Sequence[tuple[int, int, TenantModule | None]], layer: int) -> Delta:
    """Each tenant's change on its own rows, in place; rows without a module stay as they are."""

    def apply(site: str, x: Tensor, y: Tensor, norm: Norm | None = None) -> Tensor:
        for start, end, module in bounds:
            change = None if module is None else module.at(layer, site)
            if change is not None:
                mine, read = y[start:end], x[start:end]
                change.add_to(mine, read if norm is None else norm(mine + read))
        return y

    return apply


def attend_packed(offsets: Sequence[int], heads: int) -> Attend:
    """Attention inside each text of a packed batch; rows [tokens, dim]."""
    longest = max((b - a for a, b in pairwise(offsets)), default=0)

    def attend(q: Tensor, k: Tensor, v: Tensor, relative: Tensor | None = None) -> Tensor:
        out = torch.empty_like(q)
        bias = None if relative is None else relative_bias(relative, longest)[None]
        for a, b in pairwise(offsets):
            qs, ks, vs = (heads_first(z[None, a:b], heads) for z in (q, k, v))
            # What a shorter text needs is the corner of what the longest needs.
            mask = None if bias is None else bias[:, :, : b - a, : b - a]
            y = F.scaled_dot_product_attention(qs, ks, vs, attn_mask=mask)
            out[a:b] = y.transpose(1, 2).flatten(-2)[0]
        out[offsets[-1] :] = 0
        return out

    return attend


def attend_first(offsets: Sequence[int], heads: int) -> Attend:
    """Attention of the first row of each text, queries [texts, dim], over the text's own rows [tokens, dim]."""
    longest = max((b - a for a, b in pairwise(offsets)), default=0)

    def attend(q: Tensor, k: Tensor, v: Tensor, relative: Tensor | None = None) -> Tensor:
        out = torch.empty_like(q)
        bias = None if relative is None else relative_bias(relative, longest, 1)[None]
        for i, (a, b) in enumerate(pairwise(offsets)):
            y = F.scaled_dot_product_attention(
                heads_first(q[None, i : i + 1], heads),
                heads_first(k[None, a:b], heads),
                heads_first(v[None, a:b], heads),
                attn_mask=None if bias is None else bias[..., : b - a],
            )
            out[i] = y.transpose(1, 2).flatten(-2)[0, 0]
        out[len(offsets) - 1 :] = 0
        return out

    return attend
