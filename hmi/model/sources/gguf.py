"""GGUF files: a language model's weights, shape, tokenizer and chat template in one file, as in llama.cpp.

They are read by the package `gguf` and given in the form of a Hugging Face folder, so that one loader serves
both. Format: the specification of GGUF in the repository of ggml.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer
from torch import Tensor

from hmi.errors import UnsupportedModel
from hmi.model.network.shape import DECODERS

_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OTHERS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_DIGITS = pre_tokenizers.Digits(individual_digits=True)
_GPT2 = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PLAIN = pre_tokenizers.ByteLevel(add_prefix_space=False)
_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
_SPLITS: dict[str, list[pre_tokenizers.PreTokenizer]] = {
    "gpt-2": [_PLAIN],
    "smollm": [_DIGITS, _PLAIN],
    "llama-bpe": [pre_tokenizers.Split(Regex(_GPT2 % r"\p{N}{1,3}"), "isolated"), _BYTES],
    "qwen2": [pre_tokenizers.Split(Regex(_GPT2 % r"\p{N}"), "isolated"), _BYTES],
}
"""The rules that split a text before byte pairs are merged, by the name in `tokenizer.ggml.pre`."""
_ARCHITECTURE = b"general.architecture"
_FIRST = 24
"""The place of the first field: a GGUF file begins with its magic, version and counts."""
_CONTROL, _USER_DEFINED = 3, 4
"""Kinds of tokens in `tokenizer.ggml.token_type` that stand for themselves in a text."""


@dataclass(frozen=True)
class GgufModel:
    """An open GGUF file of a language model. Raises UnsupportedModel where the file does not fit."""

    path: Path
    reader: Any
    config: dict[str, Any]
    """The fields that a `config.json` of this model would have."""

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Each tensor in fp32, by the name that it has in a Hugging Face checkpoint."""
        from gguf import quants

        for tensor in self.reader.tensors:
            name, part = tensor.name.rsplit(".", 1)
            if name == "rope_freqs":
                raise _unfit(self.path, "it has scaled rotary positions")
            value = quants.dequantize(tensor.data, tensor.tensor_type)
            plain = torch.from_numpy(np.array(value, np.float32))
            if name.startswith("blk."):
                _, layer, site = name.split(".", 2)
                if self.config["model_type"] == "llama" and site in ("attn_q", "attn_k"):
                    key = "num_attention_heads" if site == "attn_q" else "num_key_value_heads"
                    plain = _in_halves(plain, self.config[key])
                yield f"model.layers.{layer}.{_LAYER.get(site, site)}.{part}", plain
            else:
                yield f"{_OTHERS.get(name, name)}.{part}", plain

    def tokenizer(self) -> FastTokenizer:
        """Its tokenizer: byte pairs only. No token is added at the beginning."""
        get = self._field
        if get("tokenizer.ggml.model") != "gpt2" or get("tokenizer.ggml.pre") not in _SPLITS:
            found = f"{get('tokenizer.ggml.model')!r} with {get('tokenizer.ggml.pre')!r}"
            raise _unfit(self.path, f"its tokenizer is {found}, not gpt2 with one of {', '.join(_SPLITS)}")
        tokens = get("tokenizer.ggml.tokens")
        merges = [tuple(merge.split(" ", 1)) for merge in get("tokenizer.ggml.merges")]
        split = get("tokenizer.ggml.pre")
        # Llama 3 takes a word of the vocabulary as it is, whatever the merges make of it.
        words = {token: i for i, token in enumerate(tokens)}
        try:
            model = models.BPE(words, merges, ignore_merges=split == "llama-bpe")
        except Exception as error:  # the library raises a bare Exception
            raise _unfit(self.path, f"its tokenizer cannot be made ({error})") from error
        made = FastTokenizer(model)
        made.pre_tokenizer = pre_tokenizers.Sequence(_SPLITS[split])
        made.decoder = decoders.ByteLevel()
        kinds = get("tokenizer.ggml.token_type")
        for token, kind in zip(tokens, kinds, strict=True):
            if kind in (_CONTROL, _USER_DEFINED):
                made.add_tokens([AddedToken(token, special=kind == _CONTROL, normalized=False)])
        return made

    def template(self) -> str | None:
        """The Jinja template by which a chat becomes a text; None if there is none."""
        found = self._field("tokenizer.chat_template")
        return found if isinstance(found, str) else None

    def _field(self, name: str) -> Any:
        field = self.reader.get_field(name)
        return None if field is None else field.contents()


def check_beginning(path: Path) -> None:
    """Raise UnsupportedModel if a file is no GGUF file, or if its first field is another architecture.

    Nearly every file's first field is its architecture. To read all fields takes seconds.
    """
    with path.open("rb") as file:
        head = file.read(256)
    if head[:4] != b"GGUF":
        raise UnsupportedModel(f"{path.name} is not a GGUF file", field="source")
    text = 8  # GGUF's number of the type
    field = struct.pack("<Q20sI", len(_ARCHITECTURE), _ARCHITECTURE, text)
    if head.startswith(field, _FIRST):
        size, begin = _FIRST + len(field), _FIRST + len(field) + 8
        end = begin + int.from_bytes(head[size:begin], "little")
        _check_architecture(path, head[begin:end].decode(errors="replace"))


def _check_architecture(path: Path, kind: object) -> None:
    if kind not in DECODERS:
        raise _unfit(path, f"its architecture is {kind!r}, not one of {', '.join(DECODERS)}")


def open_gguf(path: Path) -> GgufModel:
    """Open a GGUF file. Raises UnsupportedModel."""
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise UnsupportedModel(
            "a GGUF file needs the package gguf: install hmi-server[gguf], or give a folder with safetensors",
            field="source",
        ) from error
    try:
        reader = GGUFReader(path)
    except Exception as error:  # the reader raises what numpy does
        raise _unfit(path, f"it cannot be read ({error})") from error
    model = GgufModel(path, reader, {})
    kind = model._field(_ARCHITECTURE.decode())
    _check_architecture(path, kind)
    tokens = model._field("tokenizer.ggml.tokens") or []

    def of(name: str) -> Any:
        return model._field(f"{kind}.{name}")

    factors = (of("rope.scaling.factor"), of("rope.scale_linear"))
    if of("rope.scaling.type") not in (None, "none") or any(f not in (None, 0, 1) for f in factors):
        raise _unfit(path, "it has scaled rotary positions")
    names = {tensor.name for tensor in reader.tensors}
    config = {
        "model_type": kind,
        "vocab_size": len(tokens),
        "hidden_size": of("embedding_length"),
        "num_hidden_layers": of("block_count"),
        "intermediate_size": of("feed_forward_length"),
        "num_attention_heads": of("attention.head_count"),
        "num_key_value_heads": of("attention.head_count_kv") or of("attention.head_count"),
        "head_dim": of("attention.key_length"),
        "max_position_embeddings": of("context_length"),
        "rms_norm_eps": of("attention.layer_norm_rms_epsilon"),
        "rope_theta": of("rope.freq_base"),
        "tie_word_embeddings": "output.weight" not in names,
        "bos_token_id": model._field("tokenizer.ggml.bos_token_id"),
        "eos_token_id": [model._field(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")],
    }
    for name, value in config.items():
        if value is None and name in ("hidden_size", "num_hidden_layers", "num_attention_heads"):
            raise _unfit(path, f"it lacks what config.json has as {name}")
    size = config["head_dim"] or config["hidden_size"] // (config["num_attention_heads"] or 1)
    if of("rope.dimension_count") not in (None, size):
        raise _unfit(path, "it turns a part of each head alone")
    return GgufModel(path, reader, json.loads(json.dumps(config)))


def _in_halves(weight: Tensor, heads: int) -> Tensor:
    """Rows of Q or K whose numbers are turned in neighbouring pairs -> rows in which i and i + head_dim / 2
    are turned together."""
    out: Tensor = weight.unflatten(0, (heads, -1, 2)).transpose(1, 2).reshape(weight.shape)
    return out


def _unfit(path: Path, why: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{path.name} cannot be imported: {why}; give a folder with config.json, tokenizer.json and "
        "model.safetensors instead",
        field="source",
    )
