"""Files of locality weights: what distillation changed in a source model, small enough to ship.

A root's weights are its source's plus the differences in this file. Matrices are stored as int8
with a scale for each row, vectors as fp32, the whole compressed with zstd. For parameters that the
source lacks, the difference is taken from their initial values. The embeddings of words and token
types are never trained.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import torch
import zstandard
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from hmi.errors import Conflict, Damaged
from hmi.model.files import write_bytes
from hmi.model.sources.lower import InputBias, LocalLower
from hmi.model.sources.root import Root, split_encoder
from hmi.model.sources.source import Source, load_encoder

FORMAT = 1
MAX_BYTES = 256 << 20
"""The most bytes that a file may decompress to."""


def save_locality(
    path: Path,
    parts: tuple[LocalLower, nn.ModuleList, InputBias],
    start: tuple[LocalLower, nn.ModuleList, InputBias],
    about: dict[str, object],
) -> int:
    """Write the difference of the trained `parts` from `start`. Returns the number of bytes written.

    `about` must hold `source_sha256` and `split`; `fidelity` and `fidelity_by_kind` are shown to users.
    """
    tensors: dict[str, Tensor] = {}
    before = dict(_parameters(start))
    for name, value in _parameters(parts):
        delta = value - before[name]
        if delta.dim() < 2:
            tensors[name] = delta.contiguous()
            continue
        scale = delta.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
        tensors[f"{name}:q"] = (delta / scale).round().to(torch.int8)
        tensors[f"{name}:scale"] = scale.contiguous()
    raw = save(tensors, {"about": json.dumps({"format": FORMAT, **about}, sort_keys=True)})
    packed = zstandard.ZstdCompressor(level=19).compress(raw)
    write_bytes(path, packed)
    return len(packed)


def save_difference(path: Path, root: Root, source: Source) -> int:
    """Write how a root, loaded with its lower layers, differs from its `source`. Returns the bytes written.

    Raises Conflict if the source's weights are not those that the root was imported from, StorageFull.
    """
    assert root.lower is not None
    info = root.info
    if source.sha256 != info.source["sha256"]:
        raise Conflict(
            f"{source.name} has other weights than root {info.name} was made from: restore the original ones"
        )
    start = split_encoder(load_encoder(source.folder), info.split, root.tokenizer.cls_id, info.n)
    about: dict[str, object] = {
        "source_sha256": source.sha256,
        "split": info.split,
        "n": info.n,
        "fidelity": info.fidelity,
        "fidelity_by_kind": info.fidelity_by_kind,
    }
    return save_locality(path, (root.lower, root.upper, root.bias), start, about)


def apply_locality(path: Path, parts: tuple[LocalLower, nn.ModuleList, InputBias]) -> dict[str, object]:
    """Add the stored differences in place to `parts` fresh from `split_encoder`. Returns
    `about`. Raises Damaged."""
    try:
        raw = zstandard.ZstdDecompressor().decompress(path.read_bytes(), max_output_size=MAX_BYTES)
        tensors, about = load(raw), _file_metadata(raw)
        with torch.no_grad():
            for name, value in _parameters(parts):
                value += tensors[name] if name in tensors else _dequantise(tensors, name)
    except (SafetensorError, zstandard.ZstdError, KeyError, RuntimeError, ValueError) as error:
        raise Damaged(f"locality weights {path.name} do not fit ({error}): reinstall hmi-server") from error
    return about


def locality_name(source_sha256: str, split: int, n: int = 3) -> str:
    """The file name of the locality weights for a source, split and n-gram length."""
    window = "" if n == 3 else f"-n{n}"
    return f"{source_sha256[:16]}-split{split}{window}.locality.zst"


def shipped_locality(source_sha256: str, split: int, n: int = 3) -> Path | None:
    """The locality weights that ship for this source, split and n-gram length; None if there are none."""
    folder = Path(str(resources.files("hmi.model"))) / "weights"
    path = folder / locality_name(source_sha256, split, n)
    return path if path.is_file() else None


def _parameters(parts: tuple[LocalLower, nn.ModuleList, InputBias]) -> Iterator[tuple[str, Tensor]]:
    for prefix, module in zip(("lower", "upper", "bias"), parts, strict=True):
        for name, value in module.named_parameters():
            if name not in ("embeddings.word.weight", "embeddings.token_type.weight"):
                yield f"{prefix}.{name}", value.data


def _dequantise(tensors: dict[str, Tensor], name: str) -> Tensor:
    return tensors[f"{name}:q"].float() * tensors[f"{name}:scale"]


def _file_metadata(raw: bytes) -> dict[str, object]:
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    about: dict[str, object] = json.loads(header["__metadata__"]["about"])
    if about["format"] != FORMAT:
        raise ValueError(f"format {about['format']}, this version reads {FORMAT}")
    return about
