"""The dimensions of an encoder or a language model, read from a Hugging Face `config.json`."""

from __future__ import annotations

import json
import math
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
    """The shape of the encoder in a folder. Raises UnsupportedModel, which names the field that does not
    fit."""
    config = read_config(folder)
    kind = _checked_kind(config)
    try:
        return _shape(config, kind)
    except KeyError as error:
        raise UnsupportedModel(f"config.json lacks {error.args[0]}", field="source") from error


def read_config(folder: Path) -> dict[str, Any]:
    """The content of `folder/config.json`. Raises UnsupportedModel."""
    path = folder / "config.json"
    if not path.is_file():
        raise UnsupportedModel(
            f"no config.json in {folder}: give a Hugging Face model folder", field="source"
        )
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UnsupportedModel(f"{path} is not JSON ({error})", field="source") from error
    if not isinstance(config, dict):
        raise UnsupportedModel(f"{path} is not a JSON object", field="source")
    return config


def _checked_kind(config: dict[str, Any]) -> Kind:
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        known = ", ".join(map(repr, FAMILIES if kind in DECODERS else (*FAMILIES, *DECODERS)))
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


DECODERS = ("llama", "qwen2", "qwen3")
"""The supported architectures of language models, by `model_type`: decoders with RMSNorm before each block,
rotary positions, grouped keys and values, and SwiGLU."""


@dataclass(frozen=True)
class DecoderShape:
    """The sizes of a language model: a decoder of the shape of Llama.

    Ids in HMI are the source's plus one, since 0 means "no token" everywhere in HMI.
    """

    vocab: int
    """The number of ids, one more than the source's."""
    dim: int
    heads: int
    kv_heads: int
    """The number of heads of keys and values. Each serves heads / kv_heads heads of queries."""
    head_dim: int
    layers: int
    ffn: int
    positions: int
    """The number of tokens of the longest text."""
    eps: float
    """The RMSNorms add it to the mean square."""
    base: float
    """The rotary positions' wavelengths grow from 2π towards 2π times this."""
    tied: bool
    """True if the words' vectors also score the next token; false if other vectors do."""
    qkv_bias: bool = False
    qk_norm: bool = False
    """True if an RMSNorm follows each head's queries and keys, as in Qwen3."""
    kind: str = "llama"


MOST, MOST_LAYERS = 1 << 26, 1_000
"""Bounds of a language model's sizes and of the number of its layers."""


def read_decoder_shape(config: Mapping[str, Any]) -> DecoderShape:
    """The shape that the content of a `config.json` describes. Raises UnsupportedModel, which names the field
    that does not fit."""
    kind = config.get("model_type")
    if kind not in DECODERS:
        known = ", ".join(DECODERS)
        raise UnsupportedModel(f"config.json has model_type = {kind!r}, not one of {known}", field="source")
    must: dict[str, object] = {"hidden_act": "silu", "mlp_bias": False, "use_sliding_window": False}
    must["partial_rotary_factor"] = 1.0
    if kind != "qwen2":  # then the output projection would have a bias, too
        must["attention_bias"] = False
    for name, value in must.items():
        found = config.get(name, value)
        if found != value:
            raise UnsupportedModel(
                f"config.json has {name} = {found!r}; generative roots need {value!r}", field="source"
            )
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    named = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, dict) else rope
    if named != "default" or rope.get("factor") not in (None, 1):
        raise UnsupportedModel(
            f"config.json has scaled rotary positions ({rope}): generative roots need plain ones",
            field="source",
        )
    if any(kind != "full_attention" for kind in config.get("layer_types") or ()):
        raise UnsupportedModel("config.json has layer_types of other than full attention", field="source")
    try:
        dim, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        shape = DecoderShape(
            vocab=int(config["vocab_size"]) + 1,
            dim=dim,
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or dim // heads),
            layers=int(config["num_hidden_layers"]),
            ffn=int(config["intermediate_size"]),
            positions=int(config["max_position_embeddings"]),
            eps=float(config["rms_norm_eps"]),
            base=float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0),
            tied=config.get("tie_word_embeddings", False) is True,
            qkv_bias=kind == "qwen2",
            qk_norm=kind == "qwen3",
            kind=kind,
        )
    except KeyError as error:
        raise UnsupportedModel(f"config.json lacks {error.args[0]}", field="source") from error
    except (TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
        raise UnsupportedModel(f"config.json has a size that is none ({error})", field="source") from error
    _check_sizes(shape)
    return shape


def _check_sizes(shape: DecoderShape) -> None:
    """Raise UnsupportedModel for sizes that no language model has, before memory is taken for them."""
    sizes = (shape.vocab, shape.dim, shape.ffn, shape.positions, shape.heads, shape.kv_heads, shape.head_dim)
    sound = all(0 < size <= MOST for size in sizes) and 0 < shape.layers <= MOST_LAYERS
    sound = sound and all(math.isfinite(x) and x > 0 for x in (shape.eps, shape.base))
    if not sound or shape.heads % shape.kv_heads or shape.head_dim % 2:
        raise UnsupportedModel(f"config.json has sizes that do not fit: {shape}", field="source")
