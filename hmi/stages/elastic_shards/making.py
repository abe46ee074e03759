"""Makes the shards of a root: the folder `shards/` beside its files, which `store` reads.

- `shards.json`: the format, the root, the SHA-256 of its `upper.safetensors`, each layer's Gaussian, and the
  place, size and XXH3-128 of each blob;
- `rest.safetensors`: dictionaries, the order of heads and neurons (that of the weights), biases, LayerNorms,
  relative attention, and the input bias;
- `layer-<i>.bin`: the blobs of layer i. Those of one bitwidth lie side by side.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor, nn

from hmi.model.checked import file_sha256
from hmi.model.files import publish_folder, replace_folder, write_bytes, write_json, write_tensors
from hmi.model.sources.root import Root, load_root
from hmi.stages.elastic_shards.codec import Bytes, LayerCodec, LayerCut, ShardedLayer
from hmi.stages.elastic_shards.versions import VERSIONS
from hmi.stores.layout import clear_leftovers

log = logging.getLogger("hmi.stages")
FORMAT = 1
"""The format of `shards.json`."""
FOLDER, HEADER, REST = "shards", "shards.json", "rest.safetensors"
SHARDED = ("qkv.weight", "o.weight", "fi.weight", "fo.weight")
"""The tensors of a layer that are cut into shards. All others are in `rest.safetensors`."""
ALIGNMENT = 64
"""Blobs begin at multiples of this many bytes."""
HOUR_S = 3600.0


def layer_file(layer: int) -> str:
    """Return the name of the file of a layer's blobs."""
    return f"layer-{layer}.bin"


def hash_of(blob: Bytes) -> str:
    """Return the hash that a blob is compared with when it is read."""
    return xxhash.xxh3_128_hexdigest(blob.data)


def make_shards(folder: Path, report: Callable[[int, int], None] = lambda done, total: None) -> None:
    """Cut the root in `folder` into shards, in place of earlier ones. Takes seconds for each layer.

    report(layers done, layers). Raises Damaged (the root), UnsupportedModel (weights that are not finite),
    StorageFull; earlier shards then stay. Readers of earlier shards keep them until they close their store.
    """
    root = load_root(folder)
    clear_leftovers(folder, HOUR_S)
    made = folder / f".{FOLDER}.{uuid.uuid4().hex[:8]}.tmp"
    try:
        publish_folder(made, lambda aside: _fill(aside, root, report))
        replace_folder(made, folder / FOLDER)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _fill(folder: Path, root: Root, report: Callable[[int, int], None]) -> None:
    shape, layers = root.info.shape, len(root.upper)
    tensors: dict[str, Tensor] = {f"bias.{k}": v for k, v in root.bias.state_dict().items()}
    about: list[dict[str, Any]] = []
    for i, layer in enumerate(root.upper):
        cut = LayerCut.plain(shape.dim, shape.heads, shape.ffn)
        made = _layer(folder / layer_file(i), layer, cut)
        rest = {k: v for k, v in layer.state_dict().items() if k not in SHARDED}
        tensors |= {f"layers.{i}.{k}": v for k, v in {**rest, **made.tensors, **_order_of(cut)}.items()}
        about.append(made.about)
        g = made.about
        log.info(
            "layer %d: weights of mean %.1e and deviation %.3f; %.2f%% of them, beyond %.2f deviations, are "
            "outliers", i, g["mean"], g["std"], 100 * g["outliers"], g["reach"],
        )  # fmt: skip
        report(i + 1, layers)
    write_tensors(folder / REST, tensors)
    header = {
        "format": FORMAT,
        "root": root.info.name,
        "version": root.info.version,
        "weights": root.info.files["upper.safetensors"],
        "rest": file_sha256(folder / REST),
        "shape": {"dim": shape.dim, "heads": shape.heads, "ffn": shape.ffn},
        "layers": about,
    }
    write_header(folder / HEADER, header)


def write_header(path: Path, header: Mapping[str, Any]) -> None:
    """Write `shards.json` with its checksum."""
    write_json(path, {**header, "check": check_of(header)})


def check_of(header: Mapping[str, Any]) -> str:
    """Return the checksum of all other fields of `shards.json`, or of `fidelity.json`."""
    return hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class _Made:
    about: dict[str, Any]
    tensors: dict[str, Tensor]


def _layer(path: Path, layer: nn.Module, cut: LayerCut) -> _Made:
    """Write the blobs of one layer."""
    weights = ShardedLayer.of(layer)
    codec = LayerCodec([cut.weights_of(weights, shard) for shard in range(len(cut))])
    data, index, tables = bytearray(), {}, {}
    for bits in VERSIONS:
        table, blobs = codec.encoded(bits)
        tables[f"table.{bits}"] = torch.from_numpy(table)
        places = []
        for blob in blobs:
            data += bytes(-len(data) % ALIGNMENT)
            places.append([len(data), len(blob), hash_of(blob)])
            data += blob.data
        index[str(bits)] = places
    write_bytes(path, bytes(data))
    g = codec.gaussian
    about = {"mean": g.mean, "std": g.std, "reach": _finite(g.reach), "outliers": codec.outliers}
    return _Made({**about, "blobs": index}, tables)


def _finite(reach: float) -> float:
    return min(reach, 1e9)  # JSON has no infinity


def _order_of(cut: LayerCut) -> dict[str, Tensor]:
    neurons = np.concatenate(cut.neurons)
    return {"order.heads": torch.tensor(cut.heads), "order.neurons": torch.from_numpy(neurons)}
