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
"""The supported architectures, and the values that these fields of `config.json` must have, if present."""
MPNET_FIRST_POSITION = 2
"""The position of MPNet's first token. Padding has position 1; 0 is unused."""


@dataclass(frozen=True)
class EncoderShape:
    """The sizes of an encoder with post-LayerNorm layers, GELU and a learnt vector for each position."""

    vocab: int
    dim: int
    heads: int
    layers: int
    ffn: int
    positions: int
    """The number of tokens of the longest text."""
    types: int
    """The number of token types; 0 if the source has none."""
    eps: float
    """Of the LayerNorms."""
    kind: Kind = "bert"
    buckets: int = 0
    """The number of buckets of relative attention; 0 if the source has none."""
    pad: int = 0
    """The id of padding in the source. HMI swaps it with 0, its own id of padding."""


def read_shape(folder: Path) -> EncoderShape:
    """Read `folder/config.json`. Raises UnsupportedModel, which names the field that does not fit."""
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
