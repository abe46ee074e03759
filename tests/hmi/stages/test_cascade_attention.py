"""The recomputed attention of a layer against torch's dense one over a single text."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from hmi.execution.packed import pack_upper
from hmi.model.network.encoder import EncoderLayer, heads_first
from hmi.model.network.relative import relative_bias
from hmi.model.network.shape import EncoderShape
from hmi.model.tenant.modules import TenantModule
from hmi.stages.cascade.attention import from_first
from tests.hmi.execution.test_fused import BERT, DEPTH, MPNET, module, upper

LENGTHS = (1, 2, 9, 40)


def dense(layer: EncoderLayer, heads: int, x: Tensor, tenant: TenantModule | None, index: int) -> Tensor:
    """The reference: all of a text's attention, [heads, queries, keys]."""
    q, k, _ = layer.project(x)
    if tenant is not None:
        q, k = (tenant.delta(index)(site, x, y) for site, y in (("q", q), ("k", k)))
    qs, ks = heads_first(q[None], heads)[0], heads_first(k[None], heads)[0]
    scores = qs @ ks.transpose(-1, -2) * qs.shape[-1] ** -0.5
    if layer.relative is not None:
        scores = scores + relative_bias(layer.relative, len(x))
    return scores.softmax(-1)


@pytest.mark.parametrize("shape", [BERT, MPNET], ids=["bert", "mpnet"])
@pytest.mark.parametrize("kind", ["none", "lora", "parallel"])
def test_it_is_the_dense_attention_of_the_first_query(shape: EncoderShape, kind: str) -> None:
    layers, g = upper(shape), torch.Generator().manual_seed(1)
    tenant = None if kind == "none" else module(shape, kind, 4)  # type: ignore[arg-type]
    for index in range(DEPTH):
        layer = layers[index]
        assert isinstance(layer, EncoderLayer)
        for length in LENGTHS:
            x = torch.randn(length, shape.dim, generator=g)
            wanted = dense(layer, shape.heads, x, tenant, index)[:, 0].sum(0).numpy()
            got = from_first(layer, shape.heads, x, tenant, index)
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
            assert got.sum() == pytest.approx(shape.heads, rel=1e-5)


def test_a_tenants_change_of_queries_and_keys_counts() -> None:
    layer, x = upper(BERT)[0], torch.randn(20, BERT.dim, generator=torch.Generator().manual_seed(2))
    assert isinstance(layer, EncoderLayer)
    own, root = (from_first(layer, BERT.heads, x, m) for m in (module(BERT, "lora", 4), None))
    assert np.abs(own - root).max() > 0.01


def test_layers_that_are_packed_for_serving_give_the_same() -> None:
    plain, served = upper(BERT), upper(BERT)
    pack_upper(served)
    x = torch.randn(20, BERT.dim, generator=torch.Generator().manual_seed(3))
    for a, b in zip(plain, served, strict=True):
        assert isinstance(a, EncoderLayer)
        assert isinstance(b, EncoderLayer)
        got, wanted = (from_first(layer, BERT.heads, x) for layer in (b, a))
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_a_row_that_is_no_number_gives_no_number() -> None:
    layer, x = upper(BERT)[0], torch.randn(5, BERT.dim)
    assert isinstance(layer, EncoderLayer)
    x[3, 0] = torch.nan
    assert np.isnan(from_first(layer, BERT.heads, x)).all()
