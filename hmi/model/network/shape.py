"""The dimensions of an encoder, read from a Hugging Face `config.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from hmi.errors import UnsupportedModel

Kind = Literal["bert", "mpnet", "roberta", "xlm-roberta", "camembert", "distilbert"]


@dataclass(frozen=True)
class Family:
    """How an architecture's published files say what an `Encoder` is. The defaults are BERT's."""

    must: Mapping[str, str] = field(
        default_factory=lambda: {"hidden_act": "gelu", "position_embedding_type": "absolute"}
    )
    """The values that these fields of `config.json` must have, if present."""
    sizes: Mapping[str, str] = field(
        default_factory=lambda: {
            "dim": "hidden_size",
            "heads": "num_attention_heads",
            "layers": "num_hidden_layers",
            "ffn": "intermediate_size",
        }
    )
    """The fields of `config.json`, by those of `EncoderShape`."""
    types: bool = True
    """Whether it tells the texts of a pair by token types. RoBERTa has one type, which is every token's."""
    first_position: int = 0
    """The position of a text's first token. Where that is 2, padding has position 1, and 0 is unused."""
    buckets: int = 0
    """The number of buckets of relative attention, unless the configuration has another; 0: it has none."""
    pad: int = 0
    """The id of padding, unless the configuration has another."""
    layers: str = "encoder.layer"
    """The name of the layers in the file of weights, without the architecture's own."""
    qkv: tuple[str, str, str] = ("attention.self.query", "attention.self.key", "attention.self.value")
    parts: Mapping[str, str] = field(
        default_factory=lambda: {
            "o": "attention.output.dense",
            "ln1": "attention.output.LayerNorm",
            "fi": "intermediate.dense",
            "fo": "output.dense",
            "ln2": "output.LayerNorm",
        }
    )
    """The names of a layer's other parts, by the attribute of `EncoderLayer`."""


_BERT = Family()
_ROBERTA = Family(types=False, first_position=2, pad=1)
FAMILIES: dict[str, Family] = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "mpnet": Family(
        must={"hidden_act": "gelu"},
        types=False,
        first_position=2,
        buckets=32,
        pad=1,
        qkv=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
        parts={**_BERT.parts, "o": "attention.attn.o", "ln1": "attention.LayerNorm"},
    ),
    "distilbert": Family(
        must={"activation": "gelu"},
        sizes={"dim": "dim", "heads": "n_heads", "layers": "n_layers", "ffn": "hidden_dim"},
        types=False,
        layers="transformer.layer",
        qkv=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        parts={
            "o": "attention.out_lin",
            "ln1": "sa_layer_norm",
            "fi": "ffn.lin1",
            "fo": "ffn.lin2",
            "ln2": "output_layer_norm",
        },
    ),
}
"""The supported architectures, by `model_type`: encoders with post-LayerNorm layers, GELU, and a learnt
vector for each position."""


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
    if kind not in FAMILIES:
        known = ", ".join(map(repr, FAMILIES))
        raise UnsupportedModel(
            f"config.json has model_type = {kind!r}; roots of this version need one of {known}",
            field="source",
        )
    for name, value in FAMILIES[kind].must.items():
        found = config.get(name, value)
        if found != value:
            raise UnsupportedModel(
                f"config.json has {name} = {found!r}; roots of this version need {value!r}", field="source"
            )
    return cast(Kind, kind)


def _shape(config: dict[str, Any], kind: Kind) -> EncoderShape:
    family = FAMILIES[kind]
    pad = config.get("pad_token_id")
    buckets = family.buckets and int(config.get("relative_attention_num_buckets", family.buckets))
    return EncoderShape(
        vocab=int(config["vocab_size"]),
        **{ours: int(config[theirs]) for ours, theirs in family.sizes.items()},
        positions=int(config["max_position_embeddings"]) - family.first_position,
        types=int(config["type_vocab_size"]) if family.types else 0,
        eps=float(config.get("layer_norm_eps", 1e-12)),
        kind=kind,
        buckets=buckets,
        pad=family.pad if pad is None else int(pad),
    )
