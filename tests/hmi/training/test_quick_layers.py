"""A tenant's training through quick layers: outputs and gradients equal those of the layers themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import Tensor

from hmi.core import ModuleSpec
from hmi.model.network.encoder import Attend, attend_padded, drop
from hmi.model.sources.root import Root
from hmi.model.sources.source import load_encoder
from hmi.model.tenant.modules import TenantModule, new_module
from hmi.modulespec import Kind
from hmi.training.fit.precision import native_bf16
from hmi.training.fit.quick_layers import Changed, attend_quickly, quick_layers
from tests.tiny import write_tiny_mpnet

LENGTHS = (9, 4, 1)


def module_of(root: Root, spec: ModuleSpec) -> TenantModule:
    """A module that changes something."""
    torch.manual_seed(1)
    module = new_module(spec, root.info.shape, len(root.upper))
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return module


def run(
    root: Root, module: TenantModule, layers: list[Changed], attend: Attend, cls_only: bool
) -> tuple[Tensor, list[Tensor]]:
    """The output for a fixed batch, and the gradients of its input and of the module."""
    torch.manual_seed(2)
    x = torch.randn(len(LENGTHS), max(LENGTHS), root.dim, requires_grad=True)
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    out = x
    for i, (layer, delta) in enumerate(layers):
        first = cls_only and i == len(layers) - 1
        out = layer(out, attend, delta, queries=(lambda rows: rows[:, :1]) if first else None)
    out = out.float() * (mask[:, : out.shape[1], None])
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(3))
    return out, list(torch.autograd.grad((out * weights).sum(), [x, *module.parameters()]))


def both(
    root: Root, spec: ModuleSpec, *, cls_only: bool, bf16: bool = False
) -> tuple[list[Tensor], list[Tensor]]:
    """Output and gradients of quick layers, and those of the layers themselves in fp32."""
    module, heads = module_of(root, spec), root.info.shape.heads
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        quick = run(
            root, module, quick_layers(root.upper, module, bf16=bf16), attend_quickly(mask, heads), cls_only
        )
    plain = [(layer, module.delta(i)) for i, layer in enumerate(root.upper)]
    slow = run(root, module, plain, attend_padded(mask, heads), cls_only)
    return [quick[0], *quick[1]], [slow[0], *slow[1]]


@pytest.mark.parametrize("kind", get_args(Kind))
@pytest.mark.parametrize("cls_only", [False, True])
def test_outputs_and_gradients_equal_those_of_the_layers(tiny_root: Root, kind: Kind, cls_only: bool) -> None:
    quick, slow = both(tiny_root, ModuleSpec(kind=kind, rank=4), cls_only=cls_only)
    for ours, theirs in zip(quick, slow, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=2e-4)


@pytest.mark.parametrize("sites", [("q",), ("k", "fo"), ("v", "o"), ("fi",)])
def test_a_lora_may_change_some_products_only(tiny_root: Root, sites: tuple[str, ...]) -> None:
    quick, slow = both(tiny_root, ModuleSpec(rank=3, sites=sites), cls_only=False)  # type: ignore[arg-type]
    for ours, theirs in zip(quick, slow, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=2e-4)


@pytest.mark.parametrize("cls_only", [False, True])
def test_relative_attention_is_the_same(tiny_root: Root, tmp_path: Path, cls_only: bool) -> None:
    mpnet = load_encoder(write_tiny_mpnet(tmp_path))
    upper = mpnet.layers.requires_grad_(False)
    root = replace(tiny_root, upper=upper, info=replace(tiny_root.info, shape=mpnet.shape))
    for ours, theirs in zip(*both(root, ModuleSpec(rank=4), cls_only=cls_only), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=2e-4)


@pytest.mark.skipif(not native_bf16(), reason="this processor does not multiply bf16")
def test_in_bf16_they_are_near(tiny_root: Root) -> None:
    quick, slow = both(tiny_root, ModuleSpec(rank=4), cls_only=False, bf16=True)
    for ours, theirs in zip(quick, slow, strict=True):
        assert ours.dtype == torch.float32
        assert (ours - theirs).norm() <= 0.03 * theirs.norm()


def test_the_layers_themselves_stay_as_they_are(tiny_root: Root) -> None:
    names = [name for name, _ in tiny_root.upper.named_parameters()]
    module = module_of(tiny_root, ModuleSpec(rank=2))
    before = [name for name, _ in module.named_parameters()]
    quick_layers(tiny_root.upper, module, bf16=False)
    assert [name for name, _ in tiny_root.upper.named_parameters()] == names
    assert [name for name, _ in module.named_parameters()] == before


def test_dropout_drops_its_share_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    x = torch.ones(1_000, 401, requires_grad=True)
    out = drop(x, 0.1)
    kept = out != 0
    assert abs(kept.float().mean().item() - 0.9) < 0.002
    assert torch.allclose(out[kept], torch.tensor(1 / 0.9), atol=1e-4)
    out.sum().backward()
    assert torch.equal(x.grad, out.detach())  # the gradient passes where the number did
    torch.manual_seed(0)
    assert torch.equal(drop(torch.ones(1_000, 401), 0.1), out)
    assert drop(x, 0.0) is x
