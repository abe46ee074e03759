"""The packed upper layers against the padded ones: alone equals batched,
whichever tenants share the batch."""

from __future__ import annotations

import copy
import random
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmi.core import ModuleSpec
from hmi.execution import BatchKey, Rows
from hmi.execution.packed import PackedExecutor, pack_upper, run_classified, run_rows
from hmi.execution.segments import segments_of
from hmi.model.network import prepacked
from hmi.model.network.encoder import attend_padded
from hmi.model.network.prepacked import PackedLinear
from hmi.model.sources.root import Root
from hmi.model.tenant.modules import TenantModule, module_from, new_module
from hmi.model.text.batching import pad_rows
from hmi.modulespec import Kind
from tests.modules import root_module


def before_the_last(
    executor: PackedExecutor, x: Tensor, offsets: list[int], modules: list[TenantModule | None]
) -> Tensor:
    """The rows that enter the last layer [tokens, dim]."""
    key = BatchKey(("", ""), "cls", exact=False)
    (left,) = executor.run(key, Rows.packed(x, offsets), modules)
    return left.before


def slow(root: Root, x: Tensor, module: TenantModule | None, *, cls_only: bool) -> Tensor:
    """One text, padded form, all rows in every layer: the reference."""
    rows, mask = pad_rows([x])
    before = rows
    for i, layer in enumerate(root.upper):
        before = rows
        attend = attend_padded(mask, root.info.shape.heads)
        rows = layer(rows, attend) if module is None else layer(rows, attend, module.delta(i))
    return torch.cat([rows[0, 0], before[0].mean(0)]) if cls_only else rows[0]


def served(root: Root, monkeypatch: pytest.MonkeyPatch, *, reordered: bool) -> nn.ModuleList:
    """The upper layers as the engine prepares them, with `reordered` chosen by the
    test and not by the machine."""
    if reordered and not prepacked.speedup(8, 8):
        pytest.skip("this build of torch has no reordered linear maps")
    monkeypatch.setattr(prepacked, "speedup", lambda out_size, in_size: 2.0 if reordered else 0.5)
    upper = copy.deepcopy(root.upper)
    pack_upper(upper)
    assert any(isinstance(m, PackedLinear) for m in upper.modules()) == reordered
    assert any(isinstance(m, nn.Linear) for m in upper.modules()) != reordered, (
        "one of the two copies must go"
    )
    return upper


@pytest.mark.parametrize("reordered", [True, False])
@pytest.mark.parametrize("cls_only", [True, False])
def test_a_mixed_batch_equals_one_by_one(
    tiny_root: Root, cls_only: bool, reordered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    upper = served(tiny_root, monkeypatch, reordered=reordered)
    every_kind = [(kind, 5) for kind in get_args(Kind)]
    kinds = [("lora", 4), ("lora", 8), ("parallel", 24), None, ("lora", 1), *every_kind]
    modules = [None if k is None else root_module(tiny_root, k[0], k[1], i) for i, k in enumerate(kinds)]
    rng = random.Random(0)
    for trial in range(6):
        chosen = [*rng.sample(modules, 12), modules[trial]]
        lengths = [rng.randint(1, 12) for _ in chosen]
        g = torch.Generator().manual_seed(trial)
        texts = [torch.randn(n, tiny_root.dim, generator=g) for n in lengths]
        offsets = [0, *torch.tensor(lengths).cumsum(0).tolist()]
        run = run_classified if cls_only else run_rows
        got = run(PackedExecutor(upper, tiny_root.info.shape), torch.cat(texts), offsets, chosen)
        assert len(got) == (len(chosen) if cls_only else offsets[-1])
        for i, (text, module) in enumerate(zip(texts, chosen, strict=True)):
            mine = got[i] if cls_only else got[offsets[i] : offsets[i + 1]]
            torch.testing.assert_close(
                mine, slow(tiny_root, text, module, cls_only=cls_only), atol=1e-5, rtol=1e-5
            )


def test_reordered_weights_give_the_same_products(monkeypatch: pytest.MonkeyPatch) -> None:
    if not prepacked.speedup(8, 8):
        pytest.skip("this build of torch has no reordered linear maps")
    g, rng = torch.Generator().manual_seed(0), random.Random(0)
    for _ in range(12):
        out_size, in_size = rng.randint(1, 400), rng.randint(1, 400)
        weight = torch.randn(out_size, in_size, generator=g) / in_size**0.5
        bias, x = torch.randn(out_size, generator=g), torch.randn(rng.randint(1, 300), in_size, generator=g)
        packed = PackedLinear(weight, bias)
        whole = packed(x)
        torch.testing.assert_close(whole, F.linear(x, weight, bias), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(packed(x[:1]), whole[:1], atol=1e-6, rtol=1e-6)
    assert prepacked.speedup(8, 8) == prepacked.speedup(8, 8), "measured once, for the process"


def test_where_torch_has_no_reordered_weights_the_plain_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(weight: Tensor, bias: Tensor) -> nn.Module:
        raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_reorder_linear_weight'")

    monkeypatch.setattr(prepacked, "PackedLinear", lacking)
    monkeypatch.setattr(prepacked, "_speedups", {})
    assert not prepacked.packs(nn.Linear(16, 16))


def test_few_numbers_of_rows_are_computed_and_little_in_vain() -> None:
    sizes = [prepacked.padded(n) for n in range(1, 4097)]
    assert len(set(sizes)) <= 36
    assert all(n <= size < n + max(4, n / 2) for n, size in enumerate(sizes, 1))


def test_replacing_one_tenants_module_leaves_another_bit_identical(tiny_root: Root) -> None:
    a, b, c = (root_module(tiny_root, "lora", 4, i) for i in range(3))
    x = torch.randn(10, tiny_root.dim, generator=torch.Generator().manual_seed(5))
    executor = PackedExecutor(tiny_root.upper, tiny_root.info.shape)
    one = run_rows(executor, x, [0, 4, 10], [a, b])
    two = run_rows(executor, x, [0, 4, 10], [c, b])
    assert torch.equal(one[4:], two[4:])
    assert not torch.equal(one[:4], two[:4])


@pytest.mark.parametrize("reordered", [True, False])
@pytest.mark.parametrize("spoil", ["rows", "module"])
def test_what_is_no_number_never_reaches_another_text(
    tiny_root: Root, spoil: str, reordered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    upper = served(tiny_root, monkeypatch, reordered=reordered)
    modules = [
        root_module(tiny_root, kind, 4, i) for i, kind in enumerate(["lora", "parallel", "lora", "houlsby"])
    ]
    offsets, executor = [0, 4, 9, 12, 19], PackedExecutor(upper, tiny_root.info.shape)
    x = torch.randn(19, tiny_root.dim, generator=torch.Generator().manual_seed(5))
    for run in (run_rows, before_the_last, run_classified):
        sound = run(executor, x, offsets, modules)
        for bad in range(4):
            for number in (torch.nan, torch.inf):
                rows, others = x.clone(), list(modules)
                if spoil == "rows":
                    rows[offsets[bad] : offsets[bad + 1]] = number
                else:
                    others[bad] = copy.deepcopy(modules[bad])
                    for parameter in others[bad].parameters():
                        parameter.fill_(number)
                got = run(executor, rows, offsets, others)
                bounds = range(5) if len(got) == 4 else offsets
                for i in range(4):
                    a, b = bounds[i], bounds[i + 1]
                    assert torch.equal(got[a:b], sound[a:b]) == (i != bad)
                    assert torch.isfinite(got[a:b]).all() == (i != bad)


def test_a_fresh_module_changes_nothing(tiny_root: Root) -> None:
    x = torch.randn(6, tiny_root.dim, generator=torch.Generator().manual_seed(5))
    executor = PackedExecutor(tiny_root.upper, tiny_root.info.shape)
    plain = run_rows(executor, x, [0, 6], [None])
    for kind in get_args(Kind):
        fresh = new_module(ModuleSpec(kind=kind, rank=4), tiny_root.info.shape, len(tiny_root.upper))
        got = run_rows(executor, x, [0, 6], [fresh.requires_grad_(False)])
        torch.testing.assert_close(got, plain, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("kind", "rank"), [(kind, 3) for kind in get_args(Kind)])
def test_a_module_survives_storage(tiny_root: Root, kind: str, rank: int) -> None:
    module = root_module(tiny_root, kind, rank, 3)
    again = module_from(module.state_dict())
    for name, value in module.state_dict().items():
        assert torch.equal(again.state_dict()[name], value)


def test_segments_join_neighbours_only(tiny_root: Root) -> None:
    a, b = root_module(tiny_root, "lora", 2, 0), root_module(tiny_root, "lora", 2, 1)
    runs = [(s.start, s.end) for s in segments_of([a, a, b, a, None, a, None])]
    assert runs == [(0, 2), (2, 3), (3, 4), (5, 6)]
