"""Kinds of tenant modules: what each computes, what a spec means, and how many numbers each has."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from safetensors.torch import load, save
from torch import Tensor

from hmi.core import ModelVersion, ModuleSpec
from hmi.errors import Damaged
from hmi.execution.packed import PackedExecutor, run_rows
from hmi.model.network.encoder import EncoderLayer, attend_padded
from hmi.model.network.shape import EncoderShape
from hmi.model.sources.root import Root
from hmi.model.tenant.artefact import Artefact
from hmi.model.tenant.modules import TenantModule, module_from, new_module
from hmi.model.tenant.stored_dtype import int8_of
from hmi.modulespec import BUDGETS, SITES, Kind
from tests.modules import random_module as random_changes

MINILM = EncoderShape(vocab=30522, dim=384, heads=12, layers=6, ffn=1536, positions=512, types=2, eps=1e-12)


def random_module(root: Root, spec: ModuleSpec, seed: int = 0) -> TenantModule:
    return random_changes(spec, root.info.shape, len(root.upper), seed)


def bottleneck(module: TenantModule, name: str, x: Tensor, act: Any) -> Tensor:
    p = {k.rpartition(".")[2]: v for k, v in module.state_dict().items() if k.startswith(f"sites.{name}.")}
    return F.linear(act(F.linear(x, p["down"], p["down_bias"])), p["up"], p["up_bias"])


def halves(layer: EncoderLayer, x: Tensor, heads: int) -> Tensor:
    """Attention's output before the residual: x [1, T, dim]."""
    mask = torch.ones(1, x.shape[1], dtype=torch.bool)
    out: Tensor = layer.o(attend_padded(mask, heads)(*layer.project(x), None))
    return out


def ffn(layer: EncoderLayer, h: Tensor) -> Tensor:
    out: Tensor = layer.fo(F.gelu(layer.fi(h)))
    return out


def run_one(root: Root, x: Tensor, module: TenantModule) -> Tensor:
    """One layer with a module, in packed form."""
    upper = torch.nn.ModuleList([root.upper[0]])
    return run_rows(PackedExecutor(upper, root.info.shape), x[0], [0, x.shape[1]], [module])[None]


@pytest.fixture
def x(tiny_root: Root) -> Tensor:
    return torch.randn(1, 7, tiny_root.dim, generator=torch.Generator().manual_seed(3))


def test_sequential_stands_where_pfeiffer_put_it(tiny_root: Root, x: Tensor) -> None:
    module, layer = random_module(tiny_root, ModuleSpec(kind="sequential", rank=5)), tiny_root.upper[0]
    assert isinstance(layer, EncoderLayer)
    h = layer.ln1(x + halves(layer, x, tiny_root.info.shape.heads))
    f = ffn(layer, h)
    wanted = layer.ln2(h + f + bottleneck(module, "0-after_norm", layer.ln2(h + f), F.relu))
    torch.testing.assert_close(run_one(tiny_root, x, module), wanted, atol=1e-5, rtol=1e-5)


def test_houlsby_stands_after_both_halves(tiny_root: Root, x: Tensor) -> None:
    module, layer = random_module(tiny_root, ModuleSpec(kind="houlsby", rank=5)), tiny_root.upper[0]
    assert isinstance(layer, EncoderLayer)
    a = halves(layer, x, tiny_root.info.shape.heads)
    h = layer.ln1(x + a + bottleneck(module, "0-after_attn", a, F.silu))
    f = ffn(layer, h)
    wanted = layer.ln2(h + f + bottleneck(module, "0-after_ffn", f, F.silu))
    torch.testing.assert_close(run_one(tiny_root, x, module), wanted, atol=1e-5, rtol=1e-5)


def test_ln_moves_gain_and_bias(tiny_root: Root, x: Tensor) -> None:
    module, layer = random_module(tiny_root, ModuleSpec(kind="ln")), tiny_root.upper[0]
    assert isinstance(layer, EncoderLayer)
    moved = EncoderLayer(tiny_root.info.shape)
    moved.load_state_dict(layer.state_dict())
    with torch.no_grad():
        for name in ("ln1", "ln2"):
            norm = getattr(moved, name)
            norm.weight += module.state_dict()[f"sites.0-{name}.gain"]
            norm.bias += module.state_dict()[f"sites.0-{name}.bias"]
    h = moved.ln1(x + halves(moved, x, tiny_root.info.shape.heads))
    torch.testing.assert_close(
        run_one(tiny_root, x, module), moved.ln2(h + ffn(moved, h)).detach(), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_kind_learns_at_every_site(tiny_root: Root, x: Tensor, kind: Kind) -> None:
    """A new module gets a gradient at each site in the padded form, which trains."""
    torch.manual_seed(0)
    module = new_module(ModuleSpec(kind=kind, rank=8), tiny_root.info.shape, len(tiny_root.upper))
    attend = attend_padded(torch.ones(1, x.shape[1], dtype=torch.bool), tiny_root.info.shape.heads)
    rows = x
    for i, layer in enumerate(tiny_root.upper):
        rows = layer(rows, attend, module.delta(i))
    rows.square().mul(torch.arange(rows.shape[-1])).sum().backward()
    first = {"up", "bias"}  # the tensor that starts at zero gets a gradient first
    for name, p in module.named_parameters():
        if name.rpartition(".")[2] in first:
            assert p.grad is not None, name
            assert float(p.grad.abs().sum()) > 0, name


def test_a_module_survives_fp16_files(tiny_root: Root) -> None:
    for kind in get_args(Kind):
        module = random_module(tiny_root, ModuleSpec(kind=kind, rank=3))
        halved = {k: v.half() for k, v in module.state_dict().items()}
        again = module_from(load(save(halved)))
        assert {k: v.half().tolist() for k, v in again.state_dict().items()} == {
            k: v.tolist() for k, v in halved.items()
        }


@pytest.mark.parametrize(
    "name", ["sites.0-q.sideways", "sites.0-future.down", "sites.0-q", "sites.0-ln1.down"], ids=str
)
def test_what_is_no_module_is_damaged(name: str) -> None:
    with pytest.raises(Damaged, match="not a module"):
        module_from({name: torch.zeros(2, 2)})


def numbers_in(module: TenantModule) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("kind", get_args(Kind))
def test_sizes_keep_to_their_budgets(kind: Kind) -> None:
    for name, budget in BUDGETS.items():
        spec = ModuleSpec(kind=kind, size=name)
        count = numbers_in(new_module(spec, MINILM, 3))
        assert count <= budget, (kind, name, count)
        if kind != "ln":
            more = numbers_in(new_module(spec.model_copy(update={"rank": spec.rank + 1}), MINILM, 3))
            assert more > budget, (kind, name, more)


def test_the_default_module_is_lora_of_rank_8() -> None:
    assert (ModuleSpec().kind, ModuleSpec().rank, ModuleSpec().sites) == ("lora", 8, None)
    assert (
        ModuleSpec()
        == ModuleSpec(size="default")
        == ModuleSpec.model_validate_json('{"kind": "lora", "rank": 8}')
    )


def test_sites_are_some_of_the_kinds() -> None:
    spec = ModuleSpec(sites="v, q", rank=4)  # type: ignore[arg-type]
    assert spec.all_sites == ("q", "v")
    assert spec == ModuleSpec.model_validate_json('{"sites": ["q", "v"], "rank": 4}', strict=True)
    assert spec == ModuleSpec(**json.loads(spec.model_dump_json()))
    assert ModuleSpec(sites=SITES["lora"]).sites is None
    module = new_module(spec, MINILM, 1)
    assert sorted(module.sites) == ["0-q", "0-v"]
    assert ModuleSpec(sites="q,v").rank > ModuleSpec().rank  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"size": "large", "rank": 3}, "size and rank are both given"),
        ({"sites": "attn"}, "name some of q, k, v, o, fi, fo"),
        ({"sites": []}, "name some of"),
        ({"kind": "prefix"}, "'lora', 'parallel'"),
        ({"size": {}}, "'small', 'default' or 'large'"),
    ],
)
def test_impossible_specs_say_why(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        ModuleSpec(**given)


def test_a_version_stored_before_is_read() -> None:
    old = """{
        "version": 1, "artefact": "%s", "domain": "r/d", "plot_version": "p",
        "root": "r", "root_version": "v", "task": "classification", "labels": ["a", "b"],
        "module": {"kind": "parallel", "rank": 12}, "max_length": 64, "metrics": {}, "bytes": 1,
        "created": "", "job": "j"
    }"""
    assert ModelVersion.model_validate_json(old % ("0" * 64)).module == ModuleSpec(kind="parallel", rank=12)


@pytest.mark.parametrize("kind", ["lora", "houlsby+ln"])
def test_a_module_that_rests_in_int8_is_within_half_a_step_and_half_the_size(kind: str) -> None:
    module = random_changes(ModuleSpec(kind=kind, rank=8), MINILM, 2, seed=3)  # type: ignore[arg-type]
    state = {name: value.half() for name, value in module.state_dict().items()}
    stored = Artefact(int8_of(state), {"out.bias": torch.ones(3).half()}).joined()
    assert sum(v.nbytes for v in stored.values()) < 0.6 * sum(v.nbytes for v in state.values())
    again = Artefact.split(load(save(stored)))
    assert again.module.keys() == state.keys()
    assert again.head["out.bias"].dtype == torch.float16
    for name, value in state.items():
        step = stored.get(f"module.{name}.scale", torch.zeros(1))
        rounded = value.float().abs() * 2**-11
        assert bool(((again.module[name].float() - value.float()).abs() <= 0.501 * step + rounded).all()), (
            name
        )
        assert again.module[name].dtype == torch.float16
    stored["module.sites.0-" + ("q" if kind == "lora" else "after_attn") + ".down.scale"] = torch.ones(3)
    with pytest.raises(Damaged, match="scale"):
        Artefact.split(stored)
