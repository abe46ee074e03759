"""The compiled executor against packed torch: every kind of module, every precision, alone as batched."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any, Literal, cast, get_args

import numpy as np
import pytest
import torch
from hmi_kernels.encoder import INT16, ops
from hmi_kernels.encoder.layer import BLOCK
from hmi_kernels.encoder.pack import pack_matrix
from hmi_kernels.encoder.room import SCALES, A, operand
from torch import Tensor, nn

from hmi.core import ModuleSpec
from hmi.engine.admit.bundles import TaskPart
from hmi.errors import Damaged
from hmi.execution import BatchKey, Executor, Left, Rows
from hmi.execution.fused import FusedExecutor, fused_layers, fused_module
from hmi.execution.packed import PackedExecutor, run_rows
from hmi.execution.precision import Precision, available
from hmi.model.network.encoder import EncoderLayer
from hmi.model.network.shape import EncoderShape
from hmi.model.tenant.modules import LowRankLayer, TenantModule, new_module
from hmi.modulespec import Kind

BERT = EncoderShape(vocab=9, dim=64, heads=4, layers=6, ffn=128, positions=300, types=2, eps=1e-12)
MPNET = EncoderShape(
    vocab=9, dim=128, heads=2, layers=6, ffn=192, positions=300, types=0, eps=1e-5, kind="mpnet", buckets=32
)
ODD = EncoderShape(vocab=9, dim=192, heads=4, layers=6, ffn=192, positions=300, types=2, eps=1e-12)
"""Its heads have 48 columns, which begin and end inside the kernels' panels of 64."""
MANY = EncoderShape(vocab=9, dim=320, heads=20, layers=6, ffn=64, positions=300, types=2, eps=1e-12)
"""More heads than a vector has lanes."""
BIG = EncoderShape(vocab=9, dim=384, heads=12, layers=6, ffn=1536, positions=128, types=2, eps=1e-12)
DEPTH = 3
LENGTHS = (5, 70, 1, 130, 14, 7, 64, 300)
HERE = available()


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


@pytest.mark.parametrize("shape", [ODD, MANY], ids=["odd", "many"])
def test_heads_of_any_size_equal_packed_torch(shape: EncoderShape) -> None:
    layers, (x, offsets) = upper(shape), packed(LENGTHS, shape.dim)
    modules = mixed(shape, "lora")
    ours, reference = FusedExecutor(layers, shape, "fp32"), PackedExecutor(layers, shape)
    for run in (run_rows, first):
        wanted = run(reference, x, offsets, modules)
        torch.testing.assert_close(run(ours, x, offsets, modules), wanted, atol=2e-5, rtol=0)


@pytest.mark.parametrize("precision", HERE)
@pytest.mark.parametrize("shape", [BERT, MPNET, ODD], ids=["bert", "mpnet", "odd"])
def test_first_rows_alone_are_those_of_all_rows(shape: EncoderShape, precision: Precision) -> None:
    """First rows are computed in another order, without keys and values, so they differ by rounding."""
    (x, offsets), executor = packed(LENGTHS, shape.dim), FusedExecutor(upper(shape), shape, precision)
    modules = mixed(shape, "lora")
    alone, among_all = (run(executor, x, offsets, modules) for run in (first, run_rows))
    least = {"fp32": 0.999999, "bf16": 0.9999, "int16": 0.99999, "int8": 0.999}[precision]
    assert torch.cosine_similarity(alone, among_all[offsets[:-1]]).min() > least


def test_a_layer_packed_for_all_rows_refuses_first_rows_alone() -> None:
    (layer, *_), x = fused_layers(upper(BERT), BERT, "fp32"), torch.zeros(3, BERT.dim)
    texts = ops.Texts([0, 3], [None])
    with pytest.raises(ValueError, match="first rows"):
        ops.run_layer(layer, 0, x.data_ptr(), texts, ops.Room(), x.data_ptr(), first_only=True)


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
        if self.precision == "int16":
            length = 46_300 - 0.5 * x.shape[-1] ** 0.5
            scale = torch.maximum(127 * scale / 32767, x.norm(dim=-1, keepdim=True) / length)
        return (x / scale).round() * scale

    def forward(self, x: Tensor) -> Tensor:
        x = x.bfloat16().float() if self.after_gelu and self.precision == "int8" else x
        return nn.functional.linear(self.coarse(x), self.weight, self.bias)


@pytest.mark.parametrize("precision", ["bf16", "int8", "int16"])
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
    least = {"bf16": 0.9999, "int8": 0.999, "int16": 0.99999}[precision]
    assert torch.cosine_similarity(got, plain).min() > least


@pytest.mark.parametrize("width", [64, 384, 4096])
def test_no_sum_of_16_bit_products_leaves_32_bits(width: int) -> None:
    """No row and no column is longer than the root of 2^31, and each has as many steps as that allows."""
    if "int16" not in HERE:
        pytest.skip("this processor has no instructions for int16")
    some = torch.randn(9, width, generator=torch.Generator().manual_seed(0)).numpy()
    one = np.eye(1, width, 3) * -7.5
    rows = np.concatenate(
        [some, 1e-20 * some[:3], 1e25 * some[:1], np.full_like(some[:1], 2.5), one, 0 * one]
    )
    rows, room = rows.astype(np.float32), ops.Room()
    matrix = pack_matrix(INT16, np.resize(rows, (64, width)), np.zeros(64, np.float32))
    columns = matrix.panels[0].swapaxes(0, 1).reshape(64, width)[: len(rows)]
    layer = cast(Any, SimpleNamespace(dim=width, inner=width, head=width))
    record = room.address(layer, ops.Texts([0, len(rows)], [None]))
    operand(INT16, record, rows.ctypes.data, len(rows), width)
    at, scales_at = (ctypes.c_int64.from_address(record + 8 * field).value for field in (A, SCALES))
    numbers = np.ctypeslib.as_array((ctypes.c_int16 * rows.size).from_address(at)).reshape(rows.shape)
    scales = np.ctypeslib.as_array((ctypes.c_float * len(rows)).from_address(scales_at))
    for integers, steps in ((numbers, scales), (columns, matrix.shared[0, 0].view(np.float32)[: len(rows)])):
        squares, step = (integers.astype(np.int64) ** 2).sum(1), steps.astype(np.float64)[:, None]
        assert squares.max() < 2**31
        assert (np.abs(integers * step - rows) <= 0.5001 * step + 1e-6 * np.abs(rows)).all()
        assert ((squares > 0.98 * 2**31) | (np.abs(integers).max(1) == 32767))[:-1].all()
    assert not numbers[-1].any()


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


@pytest.mark.parametrize("precision", HERE)
def test_first_rows_of_many_short_texts_are_the_same_alone(precision: Precision) -> None:
    """More texts than the last layer takes at once, and tiles whose rows have modules of their own."""
    count = 2 * BLOCK + 5
    (x, offsets), executor = (
        packed((1, 3, 2) * (count // 3), BERT.dim),
        FusedExecutor(upper(BERT), BERT, precision),
    )
    own: list[TenantModule | None] = [module(BERT, "lora", 4), None, module(BERT, "lora", 24)]
    own.append(module(BERT, "sequential+ln", 8))
    modules = [own[i * 7 % 11 % 4] for i in range(len(offsets) - 1)]
    firsts = first(executor, x, offsets, modules)
    for i in (0, 1, 2, 3, BLOCK - 1, BLOCK, len(modules) - 1):
        a, b = offsets[i], offsets[i + 1]
        assert torch.equal(first(executor, x[a:b].clone(), [0, b - a], [modules[i]]), firsts[i : i + 1])
    wanted = first(PackedExecutor(upper(BERT), BERT), x, offsets, modules)
    assert torch.cosine_similarity(firsts, wanted).min() > (0.999 if precision == "int8" else 0.9999)


@pytest.mark.parametrize("rank", [8, 24])
def test_a_module_takes_no_more_memory_than_its_numbers(rank: int) -> None:
    if "bf16" not in HERE:
        pytest.skip("this processor has no instructions for bf16")
    mine, big = module(BIG, "lora", rank), fused_layers(upper(BIG), BIG, "bf16")
    numbers = sum(p.numel() for p in mine.parameters())
    made = fused_module(mine, big)
    assert 2 * numbers < made.memory.nbytes < 1.03 * 2 * numbers
    assert all(address % 64 == 0 for address in made.addresses)


@pytest.mark.parametrize("kind", ["lora", "houlsby+ln"])
def test_a_module_in_half_precision_is_what_its_numbers_say(kind: Kind) -> None:
    executor, (x, offsets) = FusedExecutor(upper(BERT), BERT, "fp32"), packed((9, 4), BERT.dim)
    half = module(BERT, kind, 8).half()
    same = module(BERT, kind, 8)
    same.load_state_dict(half.state_dict())
    got, wanted = (run_rows(executor, x, offsets, [m, None]) for m in (half, same))
    assert torch.equal(got, wanted)


def test_a_module_of_other_sizes_is_refused() -> None:
    executor, (x, offsets) = FusedExecutor(upper(BERT), BERT, "fp32"), packed((4,), BERT.dim)
    with pytest.raises(ValueError, match="the layer needs"):
        run_rows(executor, x, offsets, [module(MPNET, "lora", 4)])
    with pytest.raises(Damaged, match="the layer needs"):
        TaskPart(module(MPNET, "lora", 4), None, None, None).ready(executor.prepare)


@pytest.mark.parametrize("site", ["0-attn", "0-fo"])
def test_biases_are_where_the_kernels_read_them(site: str) -> None:
    """Without biases at a bottleneck the kernels would read past the module's end."""
    kind: Kind = "lora" if site == "0-fo" else "parallel"
    change = module(BERT, kind, 4).sites[site]
    biases = (torch.zeros(4), torch.zeros(BERT.dim)) if kind == "lora" else ()
    other = TenantModule({site: LowRankLayer(change.down, change.up, *biases)})
    with pytest.raises(ValueError, match="biases"):
        FusedExecutor(upper(BERT), BERT, "fp32").prepare(other)


def test_a_text_beyond_relative_attention_is_refused() -> None:
    executor, (x, offsets) = FusedExecutor(upper(MPNET), MPNET, "fp32"), packed((301,), MPNET.dim)
    with pytest.raises(ValueError, match="relative attention"):
        run_rows(executor, x, offsets, [None])


@pytest.mark.parametrize("precision", HERE)
@pytest.mark.parametrize("kind", ["parallel", "lora", "houlsby"])
def test_not_a_number_stays_with_its_text_and_is_no_answer(precision: Precision, kind: Kind) -> None:
    executor, (x, offsets) = FusedExecutor(upper(BERT), BERT, precision), packed((6, 9), BERT.dim)
    mine, broken = module(BERT, "lora", 8), module(BERT, kind, 8)
    next(p for name, p in broken.named_parameters() if name.endswith("down")).fill_(torch.nan)
    got = run_rows(executor, x, offsets, [broken, mine])
    assert not torch.isfinite(got[:6]).any(dim=1).any()
    assert torch.equal(got[6:], run_rows(executor, x[6:].clone(), [0, 9], [mine]))
    got = first(executor, x, offsets, [broken, mine])
    assert not torch.isfinite(got[0]).any()
    assert torch.equal(got[1:], first(executor, x[6:].clone(), [0, 9], [mine]))


def test_numbers_far_from_zero_stay_exact() -> None:
    layers = upper(BERT)
    for layer in layers:
        assert isinstance(layer, EncoderLayer)
        layer.fi.bias.data.mul_(300)  # GELU far beyond where its polynomial ends
    (x, offsets), none = packed((40, 3), BERT.dim), [None, None]
    wanted = run_rows(PackedExecutor(layers, BERT), x, offsets, none)
    got = run_rows(FusedExecutor(layers, BERT, "fp32"), x, offsets, none)
    torch.testing.assert_close(got, wanted, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("reads", ["cls", "rows"])
@pytest.mark.parametrize("shape", [BERT, MPNET], ids=["bert", "mpnet"])
def test_merged_rows_and_texts_that_leave_early(shape: EncoderShape, reads: Literal["cls", "rows"]) -> None:
    layers, (x, offsets) = upper(shape), packed((12, 5, 30), shape.dim)
    sizes = torch.randint(1, 4, (len(x),), generator=torch.Generator().manual_seed(0)).float()
    rows = Rows(x, offsets, range(3), None, sizes)
    modules = [module(shape, "lora", 8), None, module(shape, "sequential", 3)]

    def last(executor: Executor) -> list[tuple[list[int], Tensor]]:
        found = executor.run(BatchKey(("", ""), reads, exact=False), rows, modules, [FirstLeaves()])
        return [(list(left.texts), left.last) for left in found]

    ours, reference = last(FusedExecutor(layers, shape, "fp32")), last(PackedExecutor(layers, shape))
    assert [texts for texts, _ in ours] == [texts for texts, _ in reference] == [[0], [1, 2]]
    for (_, got), (_, wanted) in zip(ours, reference, strict=True):
        torch.testing.assert_close(got, wanted, atol=2e-5, rtol=0)


class FirstLeaves:
    """A hook that lets the first text go before the second layer."""

    at = frozenset({1})

    def __call__(self, layer: int, rows: Rows) -> tuple[Rows, Left | None]:
        end, size = rows.offsets[1], rows.size
        assert size is not None
        left = Left([0], rows.x[:end], rows.x[:end], [0, end], after=1, why="exit")
        offsets = [at - end for at in rows.offsets[1:]]
        return Rows(rows.x[end:], offsets, rows.texts[1:], None, size[end:]), left
