"""Files of locality weights: what distillation changed in a source model, small enough to ship.

A root's weights are its source's plus the differences in this file. Matrices are stored as int8
with a scale for each row, vectors as fp32, the whole compressed with zstd. The difference of a language
model's matrix is stored as the product of two, of rank STORED_RANK, in steps so coarse that zstd packs a
number into some 5 bits. For parameters that the source lacks,
the difference is taken from their initial values. The embeddings of words and token types are never trained.
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
from hmi.model.sources.causal import CausalLower
from hmi.model.sources.generative_root import GenerativeRoot, UpperDecoder, set_first, split_decoder
from hmi.model.sources.language_model import load_language_model
from hmi.model.sources.lower import InputBias, LocalLower
from hmi.model.sources.root import GenerativeRootInfo, Root, split_encoder
from hmi.model.sources.source import Source, load_encoder

FORMAT = 1
STORED_RANK = 16
"""The rank of the stored difference of a language model's matrix. A training changes a matrix by this rank,
so one is stored whole; of several, the largest part."""
STEPS = 31
"""Steps from 0 to the largest number of a row of such a product."""
LocalityParts = tuple[LocalLower, nn.ModuleList, InputBias] | tuple[CausalLower, UpperDecoder]
"""The lower and the upper layers of a root, and an encoder's bias."""
_NOT_STORED = {
    "embeddings.word.weight",
    "embeddings.token_type.weight",
    "word.weight",
    "scores.weight",
    "first",  # follows from the lower layers
}
MAX_BYTES = 256 << 20
"""The most bytes that a file may decompress to."""


def save_locality(
    path: Path, parts: LocalityParts, start: LocalityParts, about: dict[str, object], rank: int | None = None
) -> int:
    """Write the difference of the trained `parts` from `start`. Returns the number of bytes written.

    `about` must hold `source_sha256` and `split`; `fidelity` and `fidelity_by_kind` are shown to users.
    rank: the rank that larger matrices are stored with; None: they are stored whole.
    """
    tensors: dict[str, Tensor] = {}
    before = dict(_parameters(start))
    for name, value in _parameters(parts):
        delta = value - before[name]
        if delta.dim() < 2:
            tensors[name] = delta.contiguous()
        elif rank is not None and delta.dim() == 2 and min(delta.shape) > rank:
            up, values, down = torch.linalg.svd(delta, full_matrices=False)
            root = values[:rank].sqrt()
            tensors |= _int8(f"{name}:up", (up[:, :rank] * root).T, STEPS)
            tensors |= _int8(f"{name}:down", (down[:rank].T * root).T, STEPS)
        else:
            tensors |= _int8(name, delta)
    raw = save(tensors, {"about": json.dumps({"format": FORMAT, **about}, sort_keys=True)})
    packed = zstandard.ZstdCompressor(level=19).compress(raw)
    write_bytes(path, packed)
    return len(packed)


def save_difference(path: Path, root: Root | GenerativeRoot, source: Source) -> int:
    """Write how a root, loaded with its lower layers, differs from its `source`. Returns the bytes written.

    Raises Conflict if the source's weights are not those that the root was imported from, StorageFull.
    """
    assert root.lower is not None
    info = root.info
    if source.sha256 != info.source["sha256"]:
        raise Conflict(
            f"{source.name} has other weights than root {info.name} was made from: restore the original ones"
        )
    about: dict[str, object] = {
        "source_sha256": source.sha256,
        "split": info.split,
        "n": info.n,
        "fidelity": info.fidelity,
        "fidelity_by_kind": info.fidelity_by_kind,
    }
    if isinstance(root, GenerativeRoot):
        assert isinstance(info, GenerativeRootInfo)
        model = load_language_model(source)
        made = split_decoder(model.decoder, info.split, info.begin, info.n)
        return save_locality(path, (root.lower, root.upper), made, about, STORED_RANK)
    start = split_encoder(load_encoder(source.folder), info.split, root.tokenizer.cls_id, info.n)
    return save_locality(path, (root.lower, root.upper, root.bias), start, about)


def apply_locality(path: Path, parts: LocalityParts) -> dict[str, object]:
    """Add the stored differences in place to `parts` fresh from `split_encoder` or `split_decoder`. Returns
    `about`. Raises Damaged."""
    try:
        raw = zstandard.ZstdDecompressor().decompress(path.read_bytes(), max_output_size=MAX_BYTES)
        tensors, about = load(raw), _file_metadata(raw)
        with torch.no_grad():
            for name, value in _parameters(parts):
                difference = _difference(tensors, name)
                if difference.shape != value.shape:
                    raise ValueError(f"{name} has the shape {tuple(difference.shape)}")
                if not difference.isfinite().all():
                    raise ValueError(f"{name} has numbers that are not finite")
                value += difference
        if len(parts) == 2:
            set_first(parts)
    except (
        SafetensorError,
        zstandard.ZstdError,
        KeyError,
        MemoryError,  # the file says that it is larger than any memory
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
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


def _parameters(parts: LocalityParts) -> Iterator[tuple[str, Tensor]]:
    """The parameters that training may change."""
    for prefix, module in zip(("lower", "upper", "bias"), parts, strict=False):
        for name, value in module.named_parameters():
            if name not in _NOT_STORED:
                yield f"{prefix}.{name}", value.data


def _int8(name: str, value: Tensor, steps: int = 127) -> dict[str, Tensor]:
    scale = value.abs().amax(-1, keepdim=True).clamp(min=1e-12) / steps
    return {
        f"{name}:q": (value / scale).round().to(torch.int8).contiguous(),
        f"{name}:scale": scale.contiguous(),
    }


def _dequantised(tensors: dict[str, Tensor], name: str) -> Tensor:
    return tensors[f"{name}:q"].float() * tensors[f"{name}:scale"]


def _difference(tensors: dict[str, Tensor], name: str) -> Tensor:
    if name in tensors:
        return tensors[name]
    if f"{name}:up:q" in tensors:
        return _dequantised(tensors, f"{name}:up").T @ _dequantised(tensors, f"{name}:down")
    return _dequantised(tensors, name)


def _file_metadata(raw: bytes) -> dict[str, object]:
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    about: dict[str, object] = json.loads(header["__metadata__"]["about"])
    if about["format"] != FORMAT:
        raise ValueError(f"format {about['format']}, this version reads {FORMAT}")
    return about
