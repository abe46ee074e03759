"""The CUDA executor against packed torch, on the twin and on a GPU where there is one."""

from __future__ import annotations

import copy
from typing import Any, get_args

import pytest
import torch
from torch import nn

from hmi.errors import Unavailable
from hmi.execution import BatchKey, Rows
from hmi.execution.batch import offsets_of
from hmi.execution.cuda import CudaExecutor
from hmi.execution.cuda.twin import Twin
from hmi.execution.packed import PackedExecutor, run_rows
from hmi.model.network.shape import EncoderShape
from hmi.model.sources.root import Root
from hmi.model.tenant.modules import TenantModule
from hmi.modulespec import Kind
from tests.hmi.execution.test_execution import Drop, Leave, Merge, key
from tests.hmi.execution.test_fused import BERT, LENGTHS, MPNET, first, mixed, module, packed, upper
from tests.hmi.labs.cuda_lab import DEVICES, WAYS, device_of, executor
from tests.modules import root_module

CLOSE = {"atol": 2e-5, "rtol": 0}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [BERT, MPNET], ids=["bert", "mpnet"])
@pytest.mark.parametrize("kind", get_args(Kind))
def test_fp32_equals_packed_torch(device: str, shape: EncoderShape, kind: Kind) -> None:
    layers, (x, offsets) = upper(shape), packed((5, 40, 1, 70, 14, 7, 64, 90), shape.dim)
    modules, reference = mixed(shape, kind), PackedExecutor(layers, shape)
    wanted = [run(reference, x, offsets, modules) for run in (run_rows, first)]
    for way in WAYS:
        ours = executor(device_of(device, seed=len(kind + way)), shape, way=way, layers=layers)
        for run, answer in zip((run_rows, first), wanted, strict=True):
            torch.testing.assert_close(run(ours, x, offsets, modules), answer, **CLOSE)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("way", ["groups", "kernel"])
@pytest.mark.parametrize("kind", ["lora", "houlsby+ln", "sequential"])
@pytest.mark.parametrize("lengths", [(16,) * 9, (3, 9, 8, 1, 7, 8, 9, 30, 2)], ids=["even", "uneven"])
def test_a_tenant_for_each_text_in_one_product(
    device: str, way: str, kind: Kind, lengths: tuple[int, ...]
) -> None:
    (x, offsets), (a, b) = packed(lengths, BERT.dim), (module(BERT, kind, 7), module(BERT, kind, 12))
    modules = [module_like(a if i % 4 else b, i) for i in range(8)] + [None]
    ours = executor(device_of(device, 3), way=way)
    for run in (run_rows, first):
        wanted = run(PackedExecutor(upper(BERT), BERT), x, offsets, modules)
        torch.testing.assert_close(run(ours, x, offsets, modules), wanted, **CLOSE)


def module_like(one: TenantModule, seed: int) -> TenantModule:
    """Another tenant's module of the same layout."""
    g = torch.Generator().manual_seed(seed)
    made = copy.deepcopy(one)
    for p in made.parameters():
        p.copy_(p + torch.randn(p.shape, generator=g) * 0.05)
    return made


@pytest.mark.parametrize("device", DEVICES)
def test_bf16_is_close_and_exact_in_what_is_between(device: str) -> None:
    (x, offsets), modules = packed(LENGTHS, BERT.dim), mixed(BERT, "lora")
    wanted = run_rows(PackedExecutor(upper(BERT), BERT), x, offsets, modules)
    for way in WAYS:
        got = run_rows(executor(device_of(device), way=way, precision="bf16"), x, offsets, modules)
        assert got.dtype == torch.float32
        assert torch.cosine_similarity(got, wanted).min() > 0.999


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("way", WAYS)
def test_a_text_is_the_same_alone_and_in_any_batch(device: str, way: str) -> None:
    ours, (x, offsets) = executor(device_of(device, 5), way=way), packed(LENGTHS, BERT.dim)
    modules = mixed(BERT, "lora+parallel")
    rows, firsts = run_rows(ours, x, offsets, modules), first(ours, x, offsets, modules)
    for i, mine in enumerate(modules):
        a, b = offsets[i], offsets[i + 1]
        torch.testing.assert_close(run_rows(ours, x[a:b], [0, b - a], [mine]), rows[a:b], **CLOSE)
        torch.testing.assert_close(first(ours, x[a:b], [0, b - a], [mine]), firsts[i : i + 1], **CLOSE)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("way", WAYS)
def test_not_a_number_stays_with_its_text(device: str, way: str) -> None:
    ours, (x, offsets) = executor(device_of(device), way=way), packed((6, 9, 8), BERT.dim)
    mine, broken = module(BERT, "houlsby", 8), module(BERT, "houlsby", 8)
    next(p for name, p in broken.named_parameters() if name.endswith("down")).fill_(torch.nan)
    got = run_rows(ours, x, offsets, [broken, mine, None])
    assert not torch.isfinite(got[:6]).any(dim=1).any()
    torch.testing.assert_close(got[6:], run_rows(ours, x[6:], [0, 9, 17], [mine, None]), **CLOSE)


@pytest.mark.parametrize("reads", ["cls", "rows"])
@pytest.mark.parametrize("hook", [Drop(0), Drop(1), Merge(), Leave(frozenset({1, 3}), frozenset({1}))])
def test_hooks_do_what_they_do_elsewhere(tiny_root: Root, reads: str, hook: Any) -> None:
    g = torch.Generator().manual_seed(1)
    lengths = [2, 8, 4, 12, 6]
    x = torch.randn(sum(lengths) // 2, tiny_root.dim, generator=g).repeat_interleave(2, 0)
    a, b = root_module(tiny_root, "lora", 4, 1), root_module(tiny_root, "sequential", 3, 2)
    batch = Rows.packed(x, offsets_of(lengths)), [a, a, None, b, a], [hook]
    ours = CudaExecutor(tiny_root.upper, tiny_root.info.shape, "fp32", Twin(4))
    wanted = list(PackedExecutor(tiny_root.upper, tiny_root.info.shape).run(key(reads), *batch))
    got = list(ours.run(key(reads), *batch))
    assert [(list(g.texts), list(g.offsets), g.after) for g in got] == [
        (list(w.texts), list(w.offsets), w.after) for w in wanted
    ]
    for mine, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine.last, theirs.last, **CLOSE)
        torch.testing.assert_close(mine.before, theirs.before, **CLOSE)


@pytest.mark.parametrize("device", DEVICES)
def test_modules_may_rest_in_half_precision(device: str) -> None:
    (x, offsets), at_rest = packed((5, 9), BERT.dim), module(BERT, "houlsby+ln", 8).half()
    read = copy.deepcopy(at_rest).float()
    wanted = run_rows(PackedExecutor(upper(BERT), BERT), x, offsets, [read, None])
    torch.testing.assert_close(
        run_rows(executor(device_of(device)), x, offsets, [at_rest, None]), wanted, **CLOSE
    )


def test_what_does_not_fit_is_refused() -> None:
    ours, (x, offsets) = executor(Twin()), packed((4,), BERT.dim)
    with pytest.raises(ValueError, match="the layer needs"):
        run_rows(ours, x, offsets, [module(MPNET, "lora", 4)])
    long, offsets = packed((301,), BERT.dim)
    with pytest.raises(ValueError, match="reads 300"):
        run_rows(ours, long, offsets, [None])
    for name in ("down_bias", "up_bias"):
        short = module(BERT, "parallel", 4)
        change = short.at(0, "attn")
        setattr(change, name, nn.Parameter(getattr(change, name)[:-1], requires_grad=False))
        with pytest.raises(ValueError, match="the layer needs"):
            ours.prepare(short)
    with pytest.raises(Unavailable, match="HMI_DEVICE_BYTES"):
        run_rows(executor(Twin(), slots=2), x, [0, 4], [module(BERT, "lora", 79)])
    run_rows(ours, x, [0, 4], [module(BERT, "lora", 4)])


@pytest.mark.parametrize("device", DEVICES)
def test_more_tenants_than_slots_run_in_parts(device: str) -> None:
    (x, offsets), modules = packed((5,) * 12, BERT.dim), [module(BERT, "lora", r) for r in range(1, 13)]
    wanted = run_rows(PackedExecutor(upper(BERT), BERT), x, offsets, modules)
    ours = executor(device_of(device, 2), slots=3)  # a module of rank 12 takes two
    lefts = list(ours.run(BatchKey(("", ""), "rows", exact=False), Rows.packed(x, offsets), modules))
    assert len(lefts) >= 5
    assert [t for left in lefts for t in left.texts] == list(range(12))
    torch.testing.assert_close(torch.cat([left.last for left in lefts]), wanted, **CLOSE)


def test_what_stands_in_memory_is_counted_with_the_module() -> None:
    ours, mine = executor(Twin()), module(BERT, "lora", 8)
    assert ours.prepare(mine) == mine.forms.bytes > 0


@pytest.mark.parametrize("reads", ["cls", "rows"])
def test_parts_merge_rows_as_a_whole_batch_does(reads: str) -> None:
    (once, _), lengths = packed((20,), BERT.dim), [8, 4, 12, 6, 10]
    x, modules = once.repeat_interleave(2, 0), [module(BERT, "lora", r) for r in range(4, 9)]
    batch = Rows.packed(x, offsets_of(lengths)), modules, [Merge()]
    wanted = list(PackedExecutor(upper(BERT), BERT).run(key(reads), *batch))
    got = list(executor(Twin(), slots=2).run(key(reads), *batch))
    assert len(got) > 1
    for name in ("last", "before"):
        mine, theirs = (torch.cat([getattr(left, name) for left in lefts]) for lefts in (got, wanted))
        torch.testing.assert_close(mine, theirs, **CLOSE)


def slow_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    of_q: torch.Tensor,
    of_k: torch.Tensor,
    most_q: int,
    most_k: int,
) -> torch.Tensor:
    """torch's `varlen_attn` with a mask over all rows, and without a number for the host."""
    assert of_q.dtype == of_k.dtype == torch.int32
    assert most_q <= most_k
    texts = [torch.bucketize(torch.arange(len(z)), of[1:], right=True) for z, of in ((q, of_q), (k, of_k))]
    allowed = texts[0][:, None] == texts[1]
    # A row beyond the batch's holds rubbish. A mask multiplies it by 0, which a NaN outlives.
    qs, ks, vs = (z.transpose(0, 1).nan_to_num() for z in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(qs, ks, vs, allowed).transpose(0, 1)


@pytest.mark.parametrize("graphs", [False, True], ids=["each", "graphs"])
def test_attention_without_padding_equals_packed_torch(graphs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hmi.execution.cuda.attention.varlen_attn", slow_attention)
    monkeypatch.setattr("hmi.execution.cuda.executor.ragged_on", lambda *_: True)
    (x, offsets), modules = packed((5, 40, 1, 70, 14, 7, 64, 90), BERT.dim), mixed(BERT, "lora")
    ours = executor(device_of("twin", 5), way="kernel")
    ours.graphs.on = graphs
    for run in (run_rows, first):
        wanted = run(PackedExecutor(upper(BERT), BERT), x, offsets, modules)
        for _ in range(4):
            torch.testing.assert_close(run(ours, x, offsets, modules), wanted, **CLOSE)
    assert (ours.graphs.held()[0] > 0) == graphs


@pytest.mark.gpu
def test_attention_without_padding_equals_buckets() -> None:
    shape = EncoderShape(9, 256, 4, 4, 512, 128, 2, 1e-12)
    (x, offsets), modules = packed((5, 40, 1, 70, 14, 7, 64, 90), shape.dim), mixed(shape, "lora")
    layers = upper(shape)
    ours = executor(device_of("gpu"), shape, way="kernel", layers=layers, precision="bf16")
    assert ours.ragged
    found = [run(ours, x, offsets, modules) for run in (run_rows, first)]
    ours.ragged = False
    for run, answer in zip((run_rows, first), found, strict=True):
        torch.testing.assert_close(answer, run(ours, x, offsets, modules), atol=5e-2, rtol=5e-2)
