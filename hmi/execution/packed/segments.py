"""Tenants' modules on the packed rows of a batch, each on its own rows."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hmi.execution.segments import Segment
from hmi.model.network.encoder import Delta, Norm
from hmi.model.tenant.modules import TenantModule


def segment_delta(segments: Sequence[Segment[TenantModule]], layer: int) -> Delta:
    """The changes of a layer by all modules, each in place on its own rows. Other rows do not change."""

    def apply(site: str, x: Tensor, y: Tensor, norm: Norm | None = None) -> Tensor:
        for segment in segments:
            change = segment.module.at(layer, site)
            if change is not None:
                mine, read = y[segment.start : segment.end], x[segment.start : segment.end]
                change.add_to(mine, read if norm is None else norm(mine + read))
        return y

    return apply
