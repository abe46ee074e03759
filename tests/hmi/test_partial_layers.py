"""Parts of layers: some heads and neurons, as if the others contributed zero, with tenants' modules."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from hmi.core import ModuleSpec
from hmi.execution.packed import PackedExecutor, run_classified, run_rows
from hmi.model.encoder import EncoderLayer, Norm, attend_padded
from hmi.model.modules import TenantModule
from hmi.model.partial import Kept, part_of
from hmi.model.shape import EncoderShape
from hmi.modulespec import Kind
from tests.hmi.test_fused import DEPTH, upper
from tests.modules import random_module

BERT = EncoderShape(vocab=9, dim=32, heads=4, layers=6, ffn=64, positions=40, types=2, eps=1e-12)
MPNET = EncoderShape(
    vocab=9, dim=32, heads=4, layers=6, ffn=64, positions=40, types=0, eps=1e-5, kind="mpnet", buckets=32
)
LENGTHS = [1, 7, 3, 12, 5]


class Parts:
    """`Weights` that are parts of layers in memory."""

    def __init__(self, layers: nn.ModuleList, shape: EncoderShape, kept: Sequence[Kept]) -> None:
        self._parts = [part_of(layer, k, shape) for layer, k in zip(layers, kept, strict=True)]  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self._parts)

    def batch(self) -> AbstractContextManager[Parts]:
        return nullcontext(self)

    def layer(self, index: int, rows: int) -> EncoderLayer:
        return self._parts[index]


def some(shape: EncoderShape) -> list[Kept]:
    """Two heads of each layer and half of the neurons, which differ by layer and are in no order."""
    g, found = torch.Generator().manual_seed(1), []
    for _ in range(DEPTH):
        heads = torch.randperm(shape.heads, generator=g)[:2].tolist()
        found.append(Kept.of(heads, torch.randperm(shape.ffn, generator=g)[: shape.ffn // 2], 8))
    return found


def zeroed(
    layers: nn.ModuleList, shape: EncoderShape, kept: Sequence[Kept], x: Tensor, module: TenantModule | None
) -> Tensor:
    """One text, padded form, through whole layers whose missing heads and neurons are set to zero."""
    rows = x[None]
    for i, (layer, k) in enumerate(zip(layers, kept, strict=True)):
        heads, inner = torch.zeros(shape.dim), torch.zeros(shape.ffn)
        heads[k.columns], inner[k.neurons] = 1.0, 1.0

        def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, of: Tensor = heads) -> Tensor:
            return attend_padded(torch.ones(1, len(x), dtype=torch.bool), shape.heads)(q, k, v, bias) * of

        def delta(
            site: str, x: Tensor, y: Tensor, norm: Norm | None = None, of: Tensor = inner, at: int = i
        ) -> Tensor:
            out = y if module is None else module.delta(at)(site, x, y, norm)
            return out * of if site == "fi" else out

        rows = layer(rows, attend, delta)
    return rows[0]


@pytest.mark.parametrize("shape", [BERT, MPNET], ids=["bert", "mpnet"])
@pytest.mark.parametrize("kind", get_args(Kind))
def test_a_submodel_equals_the_model_with_heads_and_neurons_zeroed(shape: EncoderShape, kind: Kind) -> None:
    """Tenants are mixed, and each text alone has the answer that it has in the batch."""
    layers, kept = upper(shape), some(shape)
    a, b = (random_module(ModuleSpec(kind=kind, rank=r), shape, DEPTH, r) for r in (3, 5))
    modules = [a, None, b, b, a]
    offsets = [0, *torch.tensor(LENGTHS).cumsum(0).tolist()]
    x = torch.randn(offsets[-1], shape.dim, generator=torch.Generator().manual_seed(0))
    executor = PackedExecutor(Parts(layers, shape, kept), shape)
    got = run_rows(executor, x, offsets, modules)
    first = run_classified(executor, x, offsets, modules)[:, : shape.dim]
    for i, (begin, end) in enumerate(pairwise(offsets)):
        wanted = zeroed(layers, shape, kept, x[begin:end], modules[i])
        torch.testing.assert_close(got[begin:end], wanted, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(first[i], wanted[0], atol=1e-5, rtol=1e-5)
        alone = run_rows(executor, x[begin:end], [0, end - begin], [modules[i]])
        torch.testing.assert_close(got[begin:end], alone, atol=1e-5, rtol=1e-5)


def test_a_part_with_all_heads_in_order_is_the_layer() -> None:
    (layer, *_), every = upper(MPNET), Kept.of(range(4), range(64), 8)
    assert isinstance(layer, EncoderLayer)
    part = part_of(layer, every, MPNET)
    assert part.kept is None
    assert all(torch.equal(p, layer.state_dict()[name]) for name, p in part.state_dict().items())
    assert part_of(layer, Kept.of([1, 0, 2, 3], range(64), 8), MPNET).kept is not None
