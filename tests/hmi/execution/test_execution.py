"""Hooks between layers may drop or merge rows and let texts leave: the answers equal slow
padded runs of each text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pytest
import torch
from torch import Tensor

from hmi.execution import BatchKey, Left, Rows
from hmi.execution.base import Output
from hmi.execution.batch import offsets_of
from hmi.execution.packed import PackedExecutor
from hmi.model.network.encoder import attend_padded
from hmi.model.sources.root import Root
from hmi.model.tenant.modules import TenantModule
from hmi.model.text.batching import pad_rows
from tests.modules import root_module

LENGTHS = [1, 7, 3, 12, 5]
Reads = Literal["cls", "rows"]


def key(reads: Reads) -> BatchKey:
    return BatchKey(("tiny", "1"), reads, exact=False)


def shorter(rows: Rows, kept: Sequence[Sequence[int]]) -> Rows:
    """Keep only the rows `kept` (ascending) of each text; a dropped row is represented
    by the kept row before it."""
    starts = rows.offsets[:-1]
    index = [start + i for start, mine in zip(starts, kept, strict=True) for i in mine]
    new = offsets_of([len(mine) for mine in kept])
    source = torch.empty(rows.offsets[-1], dtype=torch.int64)
    for text, (a, b) in enumerate(rows.spans()):
        for i in range(b - a):
            source[a + i] = new[text] + sum(k <= i for k in kept[text]) - 1
    return Rows(rows.x[index], new, rows.texts, source)


class Passes:
    """The end of a hook that changes no output."""

    concerns = None

    def ended(self, texts: Sequence[int], outputs: list[Output]) -> list[Output]:
        return outputs

    def close(self) -> None:
        """It holds nothing."""


@dataclass(frozen=True)
class Drop(Passes):
    """A hook that drops the last quarter of each text's rows before one layer."""

    before: int

    @property
    def at(self) -> frozenset[int]:
        return frozenset({self.before})

    def __call__(self, layer: int, rows: Rows) -> tuple[Rows, Left | None]:
        return shorter(rows, [range(b - a - (b - a) // 4) for a, b in rows.spans()]), None


def slow(
    root: Root, x: Tensor, module: TenantModule | None, cut: Callable[[int, Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """One text in padded form: (rows of the last layer, rows that entered it). `cut(layer,
    rows)` does a hook's work."""
    rows = before = x
    for i, layer in enumerate(root.upper):
        before = cut(i, rows)
        padded, mask = pad_rows([before])
        attend = attend_padded(mask, root.info.shape.heads)
        rows = (layer(padded, attend) if module is None else layer(padded, attend, module.delta(i)))[0]
    return rows, before


@pytest.fixture
def batch(tiny_root: Root) -> tuple[list[Tensor], list[TenantModule | None]]:
    g = torch.Generator().manual_seed(1)
    texts = [torch.randn(n, tiny_root.dim, generator=g) for n in LENGTHS]
    a, b = root_module(tiny_root, "lora", 4, 1), root_module(tiny_root, "sequential", 3, 2)
    return texts, [a, a, None, b, a]


@pytest.mark.parametrize("reads", ["cls", "rows"])
@pytest.mark.parametrize("before", [0, 1])
def test_rows_that_a_hook_drops(
    tiny_root: Root, batch: tuple[list[Tensor], list[TenantModule | None]], reads: Reads, before: int
) -> None:
    texts, modules = batch
    executor = PackedExecutor(tiny_root.upper, tiny_root.info.shape)
    packed = Rows.packed(torch.cat(texts), offsets_of(LENGTHS))
    (left,) = executor.run(key(reads), packed, modules, [Drop(before)])
    assert list(left.texts) == [0, 1, 2, 3, 4]
    assert list(left.offsets) == offsets_of(LENGTHS), "answers are by original tokens"
    for i, (text, module) in enumerate(zip(texts, modules, strict=True)):
        kept = len(text) - len(text) // 4
        last, entered = slow(
            tiny_root, text, module, lambda at, x, kept=kept: x[:kept] if at == before else x
        )  # type: ignore[misc]
        mine = left.before[left.offsets[i] : left.offsets[i + 1]]
        of = [min(j, kept - 1) if before <= len(tiny_root.upper) - 1 else j for j in range(len(text))]
        torch.testing.assert_close(mine, entered[of], atol=1e-5, rtol=1e-5)
        if reads == "cls":
            torch.testing.assert_close(left.last[i], last[0], atol=1e-5, rtol=1e-5)
        else:
            rows = left.last[left.offsets[i] : left.offsets[i + 1]]
            torch.testing.assert_close(rows, last[of], atol=1e-5, rtol=1e-5)


@dataclass(frozen=True)
class Merge(Passes):
    """A hook that merges rows 2i and 2i + 1 of each text, which are equal, into one that stands for both."""

    at: frozenset[int] = frozenset({0})

    def __call__(self, layer: int, rows: Rows) -> tuple[Rows, Left | None]:
        merged = shorter(rows, [range(0, b - a, 2) for a, b in rows.spans()])
        return replace(merged, size=torch.full((len(merged.x),), 2.0)), None


@pytest.mark.parametrize("reads", ["cls", "rows"])
def test_equal_rows_merged_are_as_if_they_were_not(tiny_root: Root, reads: Reads) -> None:
    g = torch.Generator().manual_seed(2)
    x = torch.cat([torch.randn(n, tiny_root.dim, generator=g).repeat_interleave(2, 0) for n in (1, 4, 6)])
    modules = [root_module(tiny_root, "lora", 4, 1)] * 3
    executor = PackedExecutor(tiny_root.upper, tiny_root.info.shape)
    packed = Rows.packed(x, offsets_of([2, 8, 12]))
    (plain,) = executor.run(key(reads), packed, modules)
    (merged,) = executor.run(key(reads), packed, modules, [Merge()])
    torch.testing.assert_close(merged.last, plain.last, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(merged.before, plain.before, atol=1e-5, rtol=1e-5)


@dataclass(frozen=True)
class Leave(Passes):
    """A hook by which some texts leave before a layer."""

    who: frozenset[int]
    at: frozenset[int]

    def __call__(self, layer: int, rows: Rows) -> tuple[Rows, Left | None]:
        go = [i for i, t in enumerate(rows.texts) if t in self.who]
        stay = [i for i, t in enumerate(rows.texts) if t not in self.who]
        spans = list(rows.spans())
        gone = self._part(rows, go, spans)
        left = Left(
            gone.texts, gone.x[list(gone.offsets[:-1])], gone.x, gone.offsets, after=layer, why="exit"
        )
        return self._part(rows, stay, spans), left

    def _part(self, rows: Rows, which: Sequence[int], spans: Sequence[tuple[int, int]]) -> Rows:
        index = [row for i in which for row in range(*spans[i])]
        lengths = [spans[i][1] - spans[i][0] for i in which]
        return Rows(rows.x[index], offsets_of(lengths), [rows.texts[i] for i in which])


def test_texts_that_leave_early_move_nobody_else(
    tiny_root: Root, batch: tuple[list[Tensor], list[TenantModule | None]]
) -> None:
    texts, modules = batch
    executor = PackedExecutor(tiny_root.upper, tiny_root.info.shape)
    packed = Rows.packed(torch.cat(texts), offsets_of(LENGTHS))
    early, end = executor.run(key("cls"), packed, modules, [Leave(frozenset({1, 3}), frozenset({1}))])
    assert (list(early.texts), early.after, early.why) == ([1, 3], 1, "exit")
    assert (list(end.texts), end.after, end.why) == ([0, 2, 4], len(tiny_root.upper), "end")
    (plain,) = executor.run(key("cls"), packed, modules)
    torch.testing.assert_close(end.last, plain.last[[0, 2, 4]], atol=1e-5, rtol=1e-5)
    everyone = Leave(frozenset(range(5)), frozenset({1}))
    (only,) = executor.run(key("cls"), packed, modules, [everyone])
    assert list(only.texts) == [0, 1, 2, 3, 4]
