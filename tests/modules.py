"""Tenant modules as training could have left them."""

from __future__ import annotations

import torch

from hmi.core import ModuleSpec
from hmi.model.network.encoder import EncoderShape
from hmi.model.sources.root import Root
from hmi.model.tenant.modules import TenantModule, new_module


def random_module(spec: ModuleSpec, shape: EncoderShape, depth: int, seed: int) -> TenantModule:
    """A module for `depth` layers in which every tensor is random."""
    module = new_module(spec, shape, depth)
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=g) * 0.2)
    return module.requires_grad_(False)


def root_module(root: Root, kind: str, rank: int, seed: int) -> TenantModule:
    """A random module for the upper layers of `root`."""
    spec = ModuleSpec(kind=kind, rank=rank)  # type: ignore[arg-type]
    return random_module(spec, root.info.shape, len(root.upper), seed)
