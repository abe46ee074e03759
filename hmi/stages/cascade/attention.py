"""The attention of one layer, computed again from the rows that enter it: the importance of words.

Executors return no attention. Tabi sums, over all queries, the attention that a token receives. Here only the
first row's query counts ([CLS]), which is what classification reads. With one query, the keys need not be
computed: q · (W k) = (q W) · k. So a text costs two products of a vector with a matrix, and one number for
each row and head, instead of keys and queries of all its rows. docs/design/0012-exits-and-cascades.md
compares both.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from hmi.model.network.encoder import EncoderLayer
from hmi.model.network.relative import relative_bias
from hmi.model.tenant.calibration import Floats
from hmi.model.tenant.modules import LORA_SCALE, LowRankLayer, TenantModule


@dataclass(frozen=True)
class Maps:
    """The query and key maps of a layer. The keys' bias is left out: it adds the same to all of a query's
    scores."""

    query: Tensor
    """[dim, dim]: out, in."""
    bias: Tensor
    """[dim]: the queries'."""
    key: Tensor
    """[dim, dim]: out, in."""


_MAPS: WeakKeyDictionary[EncoderLayer, Maps] = WeakKeyDictionary()
_LOCK = threading.Lock()


def maps_of(layer: EncoderLayer) -> Maps:
    """The layer's maps, made at its first call and kept as long as the layer lives. Thread-safe.

    A layer that is packed for serving has no plain weights. Its projection of the unit rows has them.
    """
    with _LOCK:
        found = _MAPS.get(layer)
        if found is None:
            units = torch.eye(layer.dim)
            (q, k, _), (q0, k0, _) = layer.project(units), layer.project(torch.zeros_like(units))
            found = _MAPS[layer] = Maps((q - q0).T.contiguous(), q0[0].clone(), (k - k0).T.contiguous())
    return found


@torch.inference_mode()
def from_first(
    layer: EncoderLayer, heads: int, x: Tensor, module: TenantModule | None = None, index: int = 0
) -> Floats:
    """The attention that each of one text's rows x [rows, dim] receives from its first row: [rows], summed
    over heads.

    module, index: the tenant's changes, and the layer's index in them: LoRA on queries and keys is included.
    The result does not depend on other texts of the batch.
    """
    maps, first = maps_of(layer), x[0]
    query = torch.mv(maps.query, first) + maps.bias
    change = None if module is None else module.at(index, "q")
    if isinstance(change, LowRankLayer):
        # In fp32: products of halves are slow on CPUs.
        query = query + torch.mv(change.up.float(), torch.mv(change.down.float(), first)) * LORA_SCALE
    by_head = query.view(heads, 1, -1)
    reading = (by_head @ maps.key.view(heads, -1, layer.dim)).squeeze(1)  # [heads, dim]
    change = None if module is None else module.at(index, "k")
    if isinstance(change, LowRankLayer):
        up, down = change.up.float(), change.down.float()
        reading = reading + (by_head @ up.view(heads, -1, up.shape[1])).squeeze(1) @ down * LORA_SCALE
    scores = reading @ x.T * by_head.shape[-1] ** -0.5
    if layer.relative is not None:
        scores = scores + relative_bias(layer.relative, len(x), 1)[:, 0]
    out: Floats = scores.softmax(-1).sum(0).double().numpy()
    return out
