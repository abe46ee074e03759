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

    must: Mapping[str, object] = field(
        default_factory=lambda: {
            "hidden_act": "gelu",
            "position_embedding_type": "absolute",
            "is_decoder": False,
        }
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
    token_types: Literal["two", "one", "none"] = "two"
    """Two token types tell the texts of a pair. RoBERTa has one, which is every token's."""
    before: int | None = 0
    """The rows of position vectors before that of a text's first token. None: those up to the row with the
    number of padding's id, as in RoBERTa."""
    buckets: int = 0
    """The number of buckets of relative attention, unless the configuration has another; 0: it has none."""
    pad: int = 0
    """The id of padding, unless the configuration has another."""
    prefix: str = "encoder.layer"
    """What stands before a layer's number in the file of weights."""
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

    def first_position(self, pad: int) -> int:
        """The row of the position vectors that a text's first token has."""
        return pad + 1 if self.before is None else self.before


_BERT = Family()
_ROBERTA = Family(token_types="one", before=None, pad=1)
FAMILIES: dict[str, Family] = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "mpnet": Family(
        must={"hidden_act": "gelu"},
        token_types="none",
        before=2,
        buckets=32,
        pad=1,
        qkv=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
        parts={**_BERT.parts, "o": "attention.attn.o", "ln1": "attention.LayerNorm"},
    ),
    "distilbert": Family(
        must={"activation": "gelu", "layer_norm_eps": 1e-12},
        sizes={"dim": "dim", "heads": "n_heads", "layers": "n_layers", "ffn": "hidden_dim"},
        token_types="none",
        prefix="transformer.layer",
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
    if not isinstance(kind, str) or kind not in FAMILIES:
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
    given = config.get("pad_token_id")
    pad = family.pad if given is None else int(given)
    buckets = family.buckets and int(config.get("relative_attention_num_buckets", family.buckets))
    return EncoderShape(
        vocab=int(config["vocab_size"]),
        **{ours: int(config[theirs]) for ours, theirs in family.sizes.items()},
        positions=int(config["max_position_embeddings"]) - family.first_position(pad),
        types=int(config["type_vocab_size"]) if family.token_types == "two" else 0,
        eps=float(config.get("layer_norm_eps", 1e-12)),
        kind=kind,
        buckets=buckets,
        pad=pad,
    )
