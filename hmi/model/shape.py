"""The dimensions of an encoder, read from a Hugging Face `config.json`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hmi.errors import UnsupportedModel


@dataclass(frozen=True)
class EncoderShape:
    """Sizes of a BERT-shaped encoder (absolute positions, post-LayerNorm, GELU)."""

    vocab: int
    dim: int
    heads: int
    layers: int
    ffn: int
    positions: int
    types: int
    eps: float

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


def read_shape(folder: Path) -> EncoderShape:
    """Read `folder/config.json`; raises UnsupportedModel, naming the field that does not fit."""
    path = folder / "config.json"
    if not path.is_file():
        raise UnsupportedModel(f"no config.json in {folder}: give a Hugging Face model folder", field="source")
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UnsupportedModel(f"{path} is not JSON ({error})", field="source") from error
    wanted = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}
    for name, value in wanted.items():
        found = config.get(name, value if name != "model_type" else None)
        if found != value:
            raise UnsupportedModel(
                f"config.json has {name} = {found!r}; roots of this version need {value!r}", field="source"
            )
    try:
        return EncoderShape(
            vocab=int(config["vocab_size"]),
            dim=int(config["hidden_size"]),
            heads=int(config["num_attention_heads"]),
            layers=int(config["num_hidden_layers"]),
            ffn=int(config["intermediate_size"]),
            positions=int(config["max_position_embeddings"]),
            types=int(config["type_vocab_size"]),
            eps=float(config.get("layer_norm_eps", 1e-12)),
        )
    except KeyError as error:
        raise UnsupportedModel(f"config.json lacks {error.args[0]}", field="source") from error
