"""Tenants' modules on the packed rows of a batch, each on its own rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from hmi.model.encoder import Delta, Norm
from hmi.model.modules import TenantModule


@dataclass(frozen=True)
class Segment:
    """A run of texts [start, end) of one batch that share a module (None: no module)."""

    start: int
    end: int
    module: TenantModule | None

    def rows(self, offsets: Sequence[int]) -> Segment:
        """Convert from texts to rows; text i has the rows offsets[i]:offsets[i + 1]."""
        return Segment(offsets[self.start], offsets[self.end], self.module)


def segments_of(modules: Sequence[TenantModule | None]) -> list[Segment]:
    """Group adjacent texts with the same module. The batch is sorted by module, so the runs are long."""
    out: list[Segment] = []
    for i, module in enumerate(modules):
        if out and out[-1].module is module:
            out[-1] = Segment(out[-1].start, i + 1, module)
        else:
            out.append(Segment(i, i + 1, module))
    return out


def segment_delta(segments: Sequence[Segment], layer: int) -> Delta:
    """The changes of a layer by all modules, each in place on its own rows. Other rows do not change."""

    def apply(site: str, x: Tensor, y: Tensor, norm: Norm | None = None) -> Tensor:
        for segment in segments:
            change = None if segment.module is None else segment.module.at(layer, site)
            if change is not None:
                mine, read = y[segment.start : segment.end], x[segment.start : segment.end]
                change.add_to(mine, read if norm is None else norm(mine + read))
        return y

    return apply
