"""The step executor in torch: the reference of the others, and for layers that no kernel can run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from hmi.execution.decoding.base import PAGE, Part, counts_of
from hmi.execution.segments import Segment, segments_of
from hmi.model.network.decoder import DecoderLayer, rotary
from hmi.model.network.encoder import Delta, Norm
from hmi.model.sources.generative_root import UpperDecoder
from hmi.model.tenant.modules import TenantModule


class PlainDecoder:
    """See `StepExecutor`. Keys and values are float32."""

    def __init__(self, upper: UpperDecoder, pages: int) -> None:
        self._upper, self.pages = upper, pages
        shape = upper.shape
        size = pages, len(upper.layers), 2, shape.kv_heads, PAGE, shape.head_dim
        self._kept = torch.empty(size)

    def prepare(self, module: TenantModule) -> int:
        """Do nothing: modules are computed from the memory that they lie in."""
        return 0

    @torch.inference_mode()
    def step(self, x: Tensor, parts: Sequence[Part], between: Callable[[], None] | None = None) -> Tensor:
        """See `StepExecutor.step`."""
        counts, last = counts_of(parts)
        shape = self._upper.shape
        positions = torch.cat([torch.arange(part.begin, part.begin + part.count) for part in parts])
        turns = rotary(int(positions.max()) + 1, shape.head_dim, shape.base)[:, positions]
        offsets = [0, *counts.cumsum().tolist()]
        segments = [s.rows(offsets) for s in segments_of([part.module for part in parts])]
        rows = x[None]
        for index, layer in enumerate(self._upper.layers):
            assert isinstance(layer, DecoderLayer)
            delta = _delta_of(segments, index)
            q, k, v = layer.project(rows, turns, delta)
            spans = zip(parts, offsets, offsets[1:], strict=False)
            context = [
                self._attend(index, part, q[:, :, a:b], k[0, :, a:b], v[0, :, a:b]) for part, a, b in spans
            ]
            rows = layer.finish(rows, torch.cat(context, dim=2), delta)
            if between is not None:
                between()
        return self._upper.logits(rows[0, torch.from_numpy(last)])

    def _attend(self, layer: int, part: Part, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Keep the part's keys and values [kv_heads, count, head_dim], and attend to all of its sequence so
        far: q -> context [1, heads, count, head_dim]."""
        end = part.begin + part.count
        for i, position in enumerate(range(part.begin, end)):
            page = self._kept[part.pages[position // PAGE], layer]
            page[:, :, position % PAGE] = torch.stack([k[:, i], v[:, i]])
        kept = self._kept[torch.from_numpy(part.pages[: -(-end // PAGE)]), layer]
        keys, values = kept.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :end]
        mask = torch.ones(part.count, end, dtype=torch.bool).tril(part.begin)
        grouped = q.shape[1] != len(keys)
        return F.scaled_dot_product_attention(q, keys[None], values[None], attn_mask=mask, enable_gqa=grouped)


def _delta_of(segments: Sequence[Segment[TenantModule]], layer: int) -> Delta:
    """The change of a layer, for each segment's rows its own module's."""

    def apply(site: str, x: Tensor, y: Tensor, norm: Norm | None = None) -> Tensor:
        assert norm is None
        changes = [(s, change) for s in segments if (change := s.module.at(layer, site)) is not None]
        out = y.clone() if changes else y
        for s, change in changes:
            out[:, s.start : s.end] += change(x[:, s.start : s.end])
        return out

    return apply
