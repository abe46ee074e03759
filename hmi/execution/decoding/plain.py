"""The step executor in torch: the reference of the others, and for layers that no kernel can run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from hmi.execution.decoding.base import PAGE, Between, Part, check_module
from hmi.execution.decoding.paged import PagedRows, kept_shape, place_of, turns_of
from hmi.execution.decoding.scores import ScoreRow, host_rows
from hmi.execution.segments import Segment, segments_of
from hmi.model.network.encoder import Delta, Norm
from hmi.model.sources.generative_root import UpperDecoder
from hmi.model.tenant.modules import TenantModule, fp32_form, fp32_form_bytes


class PlainDecoder:
    """See `StepExecutor`. Keys, values and modules are float32."""

    def __init__(self, upper: UpperDecoder, pages: int) -> None:
        self._upper, self.pages = upper, pages
        self._kept = torch.empty(kept_shape(upper.shape, len(upper.layers), pages))
        self._kept[:, :, -PAGE:].zero_()

    def prepare(self, module: TenantModule) -> int:
        """See `StepExecutor.prepare`. A module that is in fp32 already needs no form."""
        check_module(module, len(self._upper.layers), self._upper.shape)
        return fp32_form_bytes(self, module)

    @torch.inference_mode()
    def step(self, x: Tensor, parts: Sequence[Part], between: Between | None = None) -> Sequence[ScoreRow]:
        """See `StepExecutor.step`."""
        paged = PagedRows(parts, self._upper.shape, self._kept, place_of)
        turns = turns_of(self._upper.shape, paged.positions)
        modules = [None if part.module is None else fp32_form(self, part.module) for part in parts]
        segments = [s.rows(paged.offsets) for s in segments_of(modules)]
        rows = x[None]
        for index, layer in enumerate(self._upper.layers):
            rows = layer(rows, turns, partial(paged.attend, index), _delta_of(segments, index))
            if between is not None and between.wanted:
                between.call()
        return host_rows(self._upper.logits(rows[0, torch.from_numpy(paged.scored)]))


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
