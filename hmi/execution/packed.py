"""The packed executor: torch on the CPU, with the tokens of all tenants in one array without padding.

No text's rows depend on another text's. The reference is the padded form in `hmi.model.network.encoder`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmi.execution.base import Executor, Hook, Layers, Weights
from hmi.execution.batch import BatchKey, Left, Rows
from hmi.execution.layers import run_layers
from hmi.execution.segments import Segment, segments_of
from hmi.model.network.encoder import Attend, Delta, EncoderLayer, Norm, heads_first
from hmi.model.network.prepacked import PackedLinear, padded
from hmi.model.network.relative import relative_bias
from hmi.model.network.shape import EncoderShape
from hmi.model.tenant.modules import TenantModule, fp32_form, fp32_form_bytes


def _segment_delta(segments: Sequence[Segment[TenantModule]], layer: int) -> Delta:
    """The changes of a layer by all modules, each in place on its own rows. Other rows do not change."""

    def apply(site: str, x: Tensor, y: Tensor, norm: Norm | None = None) -> Tensor:
        for segment in segments:
            change = segment.module.at(layer, site)
            if change is not None:
                mine, read = y[segment.start : segment.end], x[segment.start : segment.end]
                change.add_to(mine, read if norm is None else norm(mine + read))
        return y

    return apply


def _attend_packed(offsets: Sequence[int], heads: int, size: Tensor | None = None) -> Attend:
    """Return a function from q, k and v, [rows, dim] each, to the attention of each row over the rows of its
    own text, [rows, dim].

    Text i has the rows offsets[i] to offsets[i + 1]. Rows after the last text get zeros. size: [rows], the
    tokens that each row stands for (`Rows.size`); None: one each.
    """
    added = _Added(offsets, size)

    def attend(q: Tensor, k: Tensor, v: Tensor, relative: Tensor | None = None) -> Tensor:
        out = torch.empty_like(q)
        bias = None if relative is None else relative_bias(relative, added.longest)[None]
        for a, b in pairwise(offsets):
            qs, ks, vs = (heads_first(z[None, a:b], heads) for z in (q, k, v))
            # A shorter text's bias is the corner of the longest text's.
            mask = added.to(None if bias is None else bias[:, :, : b - a, : b - a], a, b)
            y = F.scaled_dot_product_attention(qs, ks, vs, attn_mask=mask)
            out[a:b] = y.transpose(1, 2).flatten(-2)[0]
        out[offsets[-1] :] = 0
        return out

    return attend


def _attend_first(offsets: Sequence[int], heads: int, size: Tensor | None = None) -> Attend:
    """Return a function from q [texts, dim], of each text's first row, and k and v [rows, dim], to the
    attention of each first row over its own text, [texts, dim]. The arguments are those of `_attend_packed`.
    """
    added = _Added(offsets, size)

    def attend(q: Tensor, k: Tensor, v: Tensor, relative: Tensor | None = None) -> Tensor:
        out = torch.empty_like(q)
        bias = None if relative is None else relative_bias(relative, added.longest, 1)[None]
        for i, (a, b) in enumerate(pairwise(offsets)):
            y = F.scaled_dot_product_attention(
                heads_first(q[None, i : i + 1], heads),
                heads_first(k[None, a:b], heads),
                heads_first(v[None, a:b], heads),
                attn_mask=added.to(None if bias is None else bias[..., : b - a], a, b),
            )
            out[i] = y.transpose(1, 2).flatten(-2)[0, 0]
        out[len(offsets) - 1 :] = 0
        return out

    return attend


class _Added:
    """The term added to attention scores for rows that stand for several tokens: log(number of tokens)."""

    def __init__(self, offsets: Sequence[int], size: Tensor | None) -> None:
        self.longest = max((b - a for a, b in pairwise(offsets)), default=0)
        self._log = None if size is None else size.log()

    def to(self, bias: Tensor | None, start: int, end: int) -> Tensor | None:
        """Add the term of rows start:end to a text's bias [1, heads, queries, keys], or to none.

        Nothing is added to a text whose rows stand for one token each: with a mask torch runs another kernel,
        whose results differ in their last bits.
        """
        if self._log is None or not self._log[start:end].any():
            return bias
        mine = self._log[start:end][None, None, None]
        return mine if bias is None else bias + mine


class InMemory:
    """`Weights` with all upper layers in memory."""

    def __init__(self, upper: nn.ModuleList) -> None:
        self._layers = [_encoder_layer(layer) for layer in upper]

    def __len__(self) -> int:
        return len(self._layers)

    def batch(self) -> AbstractContextManager[InMemory]:
        return nullcontext(self)

    def layer(self, index: int, rows: int) -> EncoderLayer:
        return self._layers[index]


class PackedExecutor:
    """An `Executor` in fp32 on the CPU. Its form of a module is the module in fp32."""

    def __init__(self, upper: nn.ModuleList | Weights, shape: EncoderShape) -> None:
        self._weights: Weights = InMemory(upper) if isinstance(upper, nn.ModuleList) else upper
        self._head, self._dim = shape.dim // shape.heads, shape.dim
        # oneDNN keeps compiled code for each number of rows, so few different numbers should occur.
        self._counted = not isinstance(upper, nn.ModuleList) or any(
            isinstance(module, PackedLinear) for module in upper.modules()
        )

    @property
    def layers(self) -> int:
        return len(self._weights)

    def fits(self, key: BatchKey) -> bool:
        return key.phase == "encode"

    def space(self, tokens: int) -> Tensor:
        return torch.empty(tokens, self._dim)

    def prefetch(self, modules: Sequence[TenantModule | None]) -> None:
        """Do nothing: modules are computed from the memory that they lie in."""

    def prepare(self, module: TenantModule) -> int:
        """See `Executor.prepare`. A module that is in fp32 already needs no form."""
        return fp32_form_bytes(self, module)

    def run(
        self, key: BatchKey, rows: Rows, modules: Sequence[TenantModule | None], hooks: Sequence[Hook] = ()
    ) -> Iterator[Left]:
        """See `Executor.run`."""
        forms = [None if m is None else fp32_form(self, m) for m in modules]
        with self._weights.batch() as layers:
            step = _PackedStep(layers, self._head, self._counted, forms)
            yield from run_layers(len(self._weights), key, rows, hooks, step)


class _PackedStep:
    """One batch's `LayerRun`."""

    def __init__(
        self, layers: Layers, head: int, counted: bool, modules: Sequence[TenantModule | None]
    ) -> None:
        self._layers, self._head, self._counted, self._modules = layers, head, counted, modules

    def begin(self, rows: Rows) -> None:
        self._x, self._segments = self._padded(rows.x), segments_of([self._modules[t] for t in rows.texts])

    def layer(self, index: int, rows: Rows, first_only: bool) -> Tensor:
        layer = self._layers.layer(index, len(self._x))
        of_rows = _segment_delta([s.rows(rows.offsets) for s in self._segments], index)
        if first_only:
            return self._first(layer, index, rows, of_rows)
        heads = layer.dim // self._head
        self._x = layer(self._x, _attend_packed(rows.offsets, heads, rows.size), of_rows)
        return self._x

    def _first(self, layer: EncoderLayer, index: int, rows: Rows, of_rows: Delta) -> Tensor:
        """The result is exact: keys and values of all rows are computed, and one query for each text."""
        firsts = torch.tensor(rows.offsets[:-1])
        y: Tensor = layer(
            self._x,
            _attend_first(rows.offsets, layer.dim // self._head, rows.size),
            of_rows,
            queries=lambda whole: self._padded(whole[firsts]),
            query_delta=_segment_delta(self._segments, index),
        )
        return y

    def _padded(self, x: Tensor) -> Tensor:
        """Pad `x` with rows of zeros to one of few row counts, if the layers keep code for each count."""
        return F.pad(x, (0, 0, 0, padded(len(x)) - len(x))) if self._counted else x


def pack_upper(upper: nn.ModuleList) -> None:
    """Prepare a root's upper layers for serving, in place: see `EncoderLayer.pack`."""
    for i, layer in enumerate(upper):
        _encoder_layer(layer).pack(last=i == len(upper) - 1)


def _encoder_layer(layer: nn.Module) -> EncoderLayer:
    assert isinstance(layer, EncoderLayer)
    return layer


@torch.inference_mode()
def run_rows(
    executor: Executor, x: Tensor, offsets: Sequence[int], modules: Sequence[TenantModule | None]
) -> Tensor:
    """Run all layers and return every row, [tokens, dim]. For measurements and tests."""
    (left,) = executor.run(BatchKey(("", ""), "rows", exact=False), Rows.packed(x, offsets), modules)
    return left.last


@torch.inference_mode()
def run_classified(
    executor: Executor, x: Tensor, offsets: Sequence[int], modules: Sequence[TenantModule | None]
) -> Tensor:
    """Run all layers and return what a classification head without queries reads, [texts, 2·dim].

    That is the first row of the last layer, and the mean of the rows that entered it.
    """
    (left,) = executor.run(BatchKey(("", ""), "cls", exact=False), Rows.packed(x, offsets), modules)
    means = torch.stack([left.before[a:b].mean(0) for a, b in pairwise(left.offsets)])
    return torch.cat([left.last, means], dim=-1)
