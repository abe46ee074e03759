"""The dimensions of an encoder, read from a Hugging Face `config.json`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from hmi.errors import UnsupportedModel

Kind = Literal["bert", "mpnet"]
KINDS: dict[str, dict[str, str]] = {
    "bert": {"hidden_act": "gelu", "position_embedding_type": "absolute"},
    "mpnet": {"hidden_act": "gelu"},
}
"""The architectures that roots are made of, and what their configurations must say where they say it."""
MPNET_FIRST_POSITION = 2
"""MPNet's first token has position 2: padding has 1, and 0 is not used."""


@dataclass(frozen=True)
class EncoderShape:
    """Sizes of an encoder of post-LayerNorm layers with GELU, a vector for each position, and in MPNet
    relative attention besides."""

    vocab: int
    dim: int
    heads: int
    layers: int
    ffn: int
    positions: int
    """Tokens of the longest text."""
    types: int
    """Token types; 0 where the source has none."""
    eps: float
    kind: Kind = "bert"
    buckets: int = 0
    """Buckets of relative distance that attention tells apart; 0 where it has no such bias."""
    pad: int = 0
    """The source's id of padding. It changes places with 0, which is padding everywhere in HMI."""


def read_shape(folder: Path) -> EncoderShape:
    """Read `folder/config.json`; raises UnsupportedModel, naming the field that does not fit."""
    path = folder / "config.json"
    if not path.is_file():
        raise UnsupportedModel(
            f"no config.json in {folder}: give a Hugging Face model folder", field="source"
        )
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UnsupportedModel(f"{path} is not JSON ({error})", field="source") from error
    kind = _checked_kind(config)
    try:
        return _shape(config, kind)
    except KeyError as error:
        raise UnsupportedModel(f"config.json lacks {error.args[0]}", field="source") from error


def _checked_kind(config: dict[str, Any]) -> Kind:
    kind = config.get("model_type")
    if kind not in KINDS:
        known = " or ".join(map(repr, KINDS))
        raise UnsupportedModel(
            f"config.json has model_type = {kind!r}; roots of this version need {known}", field="source"
        )
    for name, value in KINDS[kind].items():
        found = config.get(name, value)
        if found != value:
            raise UnsupportedModel(
                f"config.json has {name} = {found!r}; roots of this version need {value!r}", field="source"
            )
    return cast(Kind, kind)


def _shape(config: dict[str, Any], kind: Kind) -> EncoderShape:
    positions = int(config["max_position_embeddings"])
    return EncoderShape(
        vocab=int(config["vocab_size"]),
        dim=int(config["hidden_size"]),
        heads=int(config["num_attention_heads"]),
        layers=int(config["num_hidden_layers"]),
        ffn=int(config["intermediate_size"]),
        positions=positions if kind == "bert" else positions - MPNET_FIRST_POSITION,
        types=int(config["type_vocab_size"]) if kind == "bert" else 0,
        eps=float(config.get("layer_norm_eps", 1e-12)),
        kind=kind,
        buckets=0 if kind == "bert" else int(config.get("relative_attention_num_buckets", 32)),
        pad=int(config.get("pad_token_id") or 0) if kind == "bert" else int(config.get("pad_token_id", 1)),
    )
