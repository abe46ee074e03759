"""Probes: texts, and the outputs by which one sees how much a change of the layers matters to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from hmi.execution.packed.attention import attend_packed
from hmi.execution.packed.segments import segment_delta
from hmi.execution.segments import Segment
from hmi.model.encoder import Attend, Delta, EncoderLayer
from hmi.model.heads import Head, pool_rows
from hmi.model.modules import TenantModule
from hmi.model.tasks import TaskKind

Read = Callable[[Tensor, Tensor, int], Tensor]
"""(a text's rows after the last layer, those that entered it, the text's index) -> its output."""
Near = Callable[[Tensor, Tensor], float]
"""(an output, the full model's output) -> how near they are, at most 1."""


@dataclass(frozen=True)
class Probe:
    """Texts of one model, or of the root alone."""

    x: Tensor
    """[tokens, dim]: the upper layers' input, one text after another."""
    offsets: tuple[int, ...]
    """Text i has the rows offsets[i]:offsets[i + 1]."""
    read: Read
    near: Near
    module: TenantModule | None = None

    def through(self, layer: EncoderLayer, index: int, x: Tensor, heads: int) -> Tensor:
        """Run one layer. index: its number, by which the module knows it."""
        out: Tensor = layer(x, attend_packed(self.offsets, heads), self.delta(index))
        return out

    def delta(self, index: int) -> Delta:
        """Return the module's change of a layer."""
        of_all = [] if self.module is None else [Segment(self.module, 0, self.offsets[-1])]
        return segment_delta(of_all, index)

    def outputs(self, last: Tensor, before: Tensor) -> list[Tensor]:
        """Return each text's output. last, before [tokens, dim]: what the last layer gives, and gets."""
        spans = enumerate(pairwise(self.offsets))
        return [self.read(last[a:b], before[a:b], i) for i, (a, b) in spans]

    def nearness(self, outputs: Sequence[Tensor], full: Sequence[Tensor]) -> float:
        """Return how near the outputs are to the full model's, the mean over the texts."""
        return sum(self.near(a, b) for a, b in zip(outputs, full, strict=True)) / len(full)


def root_probe(x: Tensor, offsets: Sequence[int]) -> Probe:
    """A probe of the root alone: [CLS] and the mean of the last rows, compared by their cosines."""

    def read(last: Tensor, before: Tensor, text: int) -> Tensor:
        return torch.stack([last[0], last.mean(0)])

    return Probe(x, tuple(offsets), read, _cosine)


def model_probe(
    x: Tensor,
    offsets: Sequence[int],
    types: Sequence[Sequence[int]],
    module: TenantModule,
    head: Head | None,
    task: TaskKind,
) -> Probe:
    """A probe of a tenant's model. types: each text's token types; head: None for an embedding.

    Lexical scores are left out: they do not depend on the layers.
    """

    def read(last: Tensor, before: Tensor, text: int) -> Tensor:
        mask = torch.ones(1, len(last), dtype=torch.bool)
        rows = before[None]
        pooled = pool_rows(task.reads, last[None], rows, torch.tensor([types[text]]), mask)
        if head is None:
            return pooled[0]
        out: Tensor = head(head.with_attended(pooled, rows, mask) if task.reads == "cls" else pooled)[0]
        return out

    return Probe(x, tuple(offsets), read, _nears.get(task.name, _overlap), module)


def batches(probe: Probe, texts: int) -> Iterable[Probe]:
    """Divide a probe into probes of at most so many texts."""
    for first in range(0, len(probe.offsets) - 1, texts):
        some = probe.offsets[first : first + texts + 1]
        start = some[0]

        def read(last: Tensor, before: Tensor, text: int, first: int = first) -> Tensor:
            return probe.read(last, before, first + text)

        rows = probe.x[start : some[-1]]
        yield Probe(rows, tuple(at - start for at in some), read, probe.near, probe.module)


def masked(attend: Attend, mask: Tensor) -> Attend:
    """Multiply each head's context with its entry of mask [heads]."""

    def apply(q: Tensor, k: Tensor, v: Tensor, relative: Tensor | None = None) -> Tensor:
        context = attend(q, k, v, relative)
        weighed: Tensor = context.unflatten(-1, (len(mask), -1)) * mask[:, None]
        return weighed.flatten(-2)

    return apply


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.cosine_similarity(a, b, dim=-1).mean())


def _overlap(a: Tensor, b: Tensor) -> float:
    """The probability mass that both give to the same labels."""
    return 1 - 0.5 * float((a.softmax(-1) - b.softmax(-1)).abs().sum(-1).mean())


def _each(a: Tensor, b: Tensor) -> float:
    return 1 - float((a.sigmoid() - b.sigmoid()).abs().mean())


def _value(a: Tensor, b: Tensor) -> float:
    return 1 - float((a - b).abs().mean())


_nears: dict[Any, Near] = {"embedding": _cosine, "multilabel": _each, "regression": _value}
