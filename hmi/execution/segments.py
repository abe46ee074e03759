"""Runs of neighbouring texts of a batch that share a module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

M = TypeVar("M")


@dataclass(frozen=True)
class Segment(Generic[M]):
    """A run of texts start:end that share a module, or the run of their rows."""

    module: M
    start: int
    end: int

    def rows(self, offsets: Sequence[int]) -> Segment[M]:
        """Convert from texts to rows; text i has the rows offsets[i]:offsets[i + 1]."""
        return replace(self, start=offsets[self.start], end=offsets[self.end])


def segments_of(modules: Sequence[M | None]) -> list[Segment[M]]:
    """Group adjacent texts with the same module; those without any are in no segment.

    A batch is sorted by module, so the runs are long.
    """
    out: list[Segment[M]] = []
    for i, module in enumerate(modules):
        if module is None:
            continue
        if out and out[-1].module is module and out[-1].end == i:
            out[-1] = replace(out[-1], end=i + 1)
        else:
            out.append(Segment(module, i, i + 1))
    return out
