"""The compiled executor against packed torch: every kind of module, every precision, alone as batched."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from hmi.core import ModuleSpec
from hmi.execution import BatchKey, Executor, Rows
from hmi.execution.fused import FusedExecutor, Precision, precisions
from hmi.execution.packed import PackedExecutor, run_rows
from hmi.model.encoder import EncoderLayer
from hmi.model.modules import TenantModule, new_module
from hmi.model.shape import EncoderShape
from hmi.modulespec import Kind

BERT = EncoderShape(vocab=9, dim=64, heads=4, layers=6, ffn=128, positions=300, types=2, eps=1e-12)
MPNET = EncoderShape(
    vocab=9, dim=128, heads=2, layers=6, ffn=192, positions=300, types=0, eps=1e-5, kind="mpnet", buckets=32
)
DEPTH = 3
LENGTHS = (5, 70, 1, 130, 14, 7, 64, 300)
HERE = precisions(BERT)


def upper(shape: EncoderShape) -> nn.ModuleList:
    g = torch.Generator().manual_seed(3)
    layers = nn.ModuleList(EncoderLayer(shape) for _ in range(DEPTH)).eval().requires_grad_(False)
    for p in layers.parameters():
        p.copy_(torch.randn(p.shape, generator=g) * (p.shape[-1] ** -0.5 if p.dim() == 2 else 0.3))
    return layers


def module(shape: EncoderShape, kind: Kind, rank: int) -> TenantModule:
    torch.manual_seed(rank)
    made = new_module(ModuleSpec(kind=kind, rank=rank), shape, DEPTH)
    for name, p in made.named_parameters():
        if not name.endswith(".down"):
            nn.init.normal_(p, std=0.1)
    return made.eval().requires_grad_(False)


def packed(lengths: tuple[int, ...], dim: int) -> tuple[Tensor, list[int]]:
    g = torch.Generator().manual_seed(sum(lengths))
    offsets = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    return torch.randn(offsets[-1], dim, generator=g), offsets


def mixed(shape: EncoderShape, kind: Kind) -> list[TenantModule | None]:
    """Modules for LENGTHS: several ranks, texts without any, neighbours that share one."""
    a, b, c, d = (module(shape, kind, rank) for rank in (3, 8, 24, 79))
    return [a, a, None, b, c, d, None, a]


def first(executor: Executor, x: Tensor, offsets: list[int], modules: list[TenantModule | None]) -> Tensor:
    (left,) = executor.run(BatchKey(("", ""), "cls", exact=False), Rows.packed(x, offsets), modules)
    return left.last


@pytest.mark.parametrize("shape", [BERT, MPNET], ids=["bert", "mpnet"])
@pytest.mark.parametrize("kind", get_args(Kind))
def test_fp32_equals_packed_torch(shape: EncoderShape, kind: Kind) -> None:
    layers, (x, offsets) = upper(shape), packed(LENGTHS, shape.dim)
    modules = mixed(shape, kind)
    ours, reference = FusedExecutor(layers, shape, "fp32"), PackedExecutor(layers, shape)
    for run in (run_rows, first):
        wanted = run(reference, x, offsets, modules)
        torch.testing.assert_close(run(ours, x, offsets, modules), wanted, atol=2e-5, rtol=0)


class Rounded(nn.Linear):
    """A linear map whose operands are rounded as the kernels round them."""

    def __init__(self, linear: nn.Linear, precision: Precision) -> None:
        super().__init__(linear.in_features, linear.out_features)
        self.precision: Precision = precision
        self.after_gelu = linear.in_features == BERT.ffn  # which is kept in bf16 on its way to int8
        self.weight.data, self.bias.data = self.coarse(linear.weight.data), linear.bias.data

    def coarse(self, x: Tensor) -> Tensor:
        if self.precision == "bf16":
            return x.bfloat16().float()
        scale = x.abs().amax(-1, keepdim=True) / 127
        return (x / scale).round() * scale

    def forward(self, x: Tensor) -> Tensor:
        x = x.bfloat16().float() if self.after_gelu else x
        return nn.functional.linear(self.coarse(x), self.weight, self.bias)


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_lower_precision_is_what_rounding_the_operands_makes(precision: Precision) -> None:
    if precision not in HERE:
        pytest.skip(f"this processor has no instructions for {precision}")
    (x, offsets), none = packed(LENGTHS, BERT.dim), [None] * len(LENGTHS)
    got = run_rows(FusedExecutor(upper(BERT)[:1], BERT, precision), x, offsets, none)
    plain = run_rows(PackedExecutor(upper(BERT)[:1], BERT), x, offsets, none)
    (layer,) = layers = upper(BERT)[:1]
    for name in ("qkv", "o", "fi", "fo"):
        setattr(layer, name, Rounded(getattr(layer, name), precision))
    wanted = run_rows(PackedExecutor(layers.requires_grad_(False), BERT), x, offsets, none)
    # A sum that lies at a rounding boundary may fall to its other side, so some numbers differ more.
    assert (got - wanted).abs().median() < 0.05 * (plain - wanted).abs().median()
    assert torch.cosine_similarity(got, plain).min() > (0.9999 if precision == "bf16" else 0.999)


@pytest.mark.parametrize("precision", HERE)
@pytest.mark.parametrize("kind", ["lora", "sequential+ln", "lora+parallel"])
def test_a_text_has_the_same_bits_alone_and_in_any_batch(precision: Precision, kind: Kind) -> None:
    executor, (x, offsets) = FusedExecutor(upper(BERT), BERT, precision), packed(LENGTHS, BERT.dim)
    modules = mixed(BERT, kind)
    rows, firsts = run_rows(executor, x, offsets, modules), first(executor, x, offsets, modules)
    for i, mine in enumerate(modules):
        a, b = offsets[i], offsets[i + 1]
        assert torch.equal(run_rows(executor, x[a:b].clone(), [0, b - a], [mine]), rows[a:b])
        assert torch.equal(first(executor, x[a:b].clone(), [0, b - a], [mine]), firsts[i : i + 1])


@pytest.mark.parametrize("precision", HERE)
def test_another_tenants_module_changes_nothing(precision: Precision) -> None:
    executor, (x, offsets) = FusedExecutor(upper(BERT), BERT, precision), packed((20, 6, 31), BERT.dim)
    mine, theirs = module(BERT, "lora", 8), module(BERT, "houlsby", 16)
    one = run_rows(executor, x, offsets, [mine, theirs, mine])
    other = run_rows(executor, x, offsets, [mine, None, mine])
    assert torch.equal(one[:20], other[:20])
    assert torch.equal(one[26:], other[26:])
    assert not torch.equal(one[20:26], other[20:26])
