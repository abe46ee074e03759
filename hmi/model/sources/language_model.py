"""Language models as published: their weights, tokenizer and chat template, from a folder or a GGUF file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from tokenizers import Tokenizer as FastTokenizer
from torch import Tensor

from hmi.errors import UnsupportedModel
from hmi.model.network.decoder import Decoder, DecoderLayer
from hmi.model.network.shape import read_config, read_decoder_shape
from hmi.model.sources.gguf import open_gguf
from hmi.model.sources.source import Source, read_weights
from hmi.model.text.generative import GenerativeTokenizer

_UNFIT = (KeyError, RuntimeError, TypeError, ValueError, OverflowError, AttributeError)
"""The errors that a file of another form raises while it is read."""


@dataclass(frozen=True)
class LanguageModel:
    """A language model in memory, in fp32."""

    decoder: Decoder
    tokenizer: GenerativeTokenizer


def load_language_model(source: Source) -> LanguageModel:
    """Load a source that generates. Raises UnsupportedModel."""
    try:
        return _loaded(source)
    except (*_UNFIT, SafetensorError) as error:
        raise UnsupportedModel(
            f"{source.name} does not hold the weights and the tokenizer that its configuration promises: "
            f"{error}",
            field="source",
        ) from error


def _loaded(source: Source) -> LanguageModel:
    weights: Iterable[tuple[str, Tensor]]
    if source.gguf is not None:
        file = open_gguf(source.gguf)
        config, weights, fast, template = file.config, file.tensors(), file.tokenizer(), file.template()
    else:
        config, weights = read_config(source.folder), read_weights(source.folder)
        generation = source.folder / "generation_config.json"
        if generation.is_file():  # where chats end is often said here alone
            ends = json.loads(generation.read_text(encoding="utf-8")).get("eos_token_id")
            config["eos_token_id"] = [*_listed(config.get("eos_token_id")), *_listed(ends)]
        fast, template = _tokenizer(source.folder)
    shape = read_decoder_shape(config)
    if max(fast.get_vocab().values(), default=0) >= shape.vocab - 1:
        raise UnsupportedModel(
            f"the tokenizer of {source.name} has ids beyond vocab_size = {shape.vocab - 1}: give a source "
            "whose files belong together",
            field="source",
        )
    tokenizer = GenerativeTokenizer(fast, *_ends(config, fast, source.name), template)
    decoder = Decoder(shape)
    with torch.no_grad():
        _fill(decoder, weights)
    return LanguageModel(decoder.eval().requires_grad_(False), tokenizer)


def _tokenizer(folder: Path) -> tuple[FastTokenizer, str | None]:
    """The tokenizer and the chat template of a Hugging Face folder."""
    try:
        fast = FastTokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the library raises a bare Exception
        raise UnsupportedModel(f"tokenizer.json is not readable: {error}", field="source") from error
    own = folder / "chat_template.jinja"
    if own.is_file():
        return fast, own.read_text(encoding="utf-8")
    settings = folder / "tokenizer_config.json"
    try:
        found = (
            json.loads(settings.read_text(encoding="utf-8")).get("chat_template")
            if settings.is_file()
            else None
        )
    except (ValueError, AttributeError) as error:
        raise UnsupportedModel(
            f"tokenizer_config.json is no JSON object ({error})", field="source"
        ) from error
    if isinstance(found, list):  # several named templates
        found = {str(each.get("name")): each.get("template") for each in found}.get("default")
    return fast, found if isinstance(found, str) else None


def _ends(config: dict[str, Any], fast: FastTokenizer, name: str) -> tuple[int, tuple[int, ...]]:
    """Our ids of the begin token and of the tokens that end a text."""
    ends = tuple(dict.fromkeys(_listed(config.get("eos_token_id"))))
    begin: Any = config.get("bos_token_id")
    begin = ends[0] if begin is None and ends else begin
    known = all(
        isinstance(i, int) and 0 <= i < 1 << 31 and fast.id_to_token(i) is not None for i in (begin, *ends)
    )
    if not known:
        raise UnsupportedModel(
            f"{name} names a first or last token of a text (bos_token_id, eos_token_id) that its tokenizer "
            "lacks",
            field="source",
        )
    return begin + 1, tuple(i + 1 for i in ends)


def _listed(ids: Any) -> list[Any]:
    """Ids of tokens, which files give as one, as a list or not at all."""
    return [i for i in (ids if isinstance(ids, list) else [ids]) if i is not None]


def _fill(decoder: Decoder, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Copy each tensor into its place. Raises KeyError for one without a place or a place without one."""
    places = _places(decoder)
    left = set(places)
    for name, value in weights:
        if name.endswith("rotary_emb.inv_freq") or (decoder.shape.tied and name == "lm_head.weight"):
            continue
        if places[name].shape != value.shape:
            raise ValueError(f"{name} is {tuple(value.shape)}, not {tuple(places[name].shape)}")
        places[name].copy_(value)
        left.discard(name)
    if left:
        raise KeyError(min(left))


def _places(decoder: Decoder) -> dict[str, Tensor]:
    """The decoder's parameters, by the names that a Hugging Face checkpoint gives them."""
    found = {"model.embed_tokens.weight": decoder.word.weight[1:], "model.norm.weight": decoder.norm.weight}
    decoder.word.weight[0] = 0
    if decoder.scores is not None:
        decoder.scores.weight[0] = 0
        found["lm_head.weight"] = decoder.scores.weight[1:]
    for i, layer in enumerate(decoder.layers):
        assert isinstance(layer, DecoderLayer)
        p = f"model.layers.{i}."
        names = ("q_proj", "k_proj", "v_proj")
        for part, whole in layer.qkv.named_parameters():
            for name, rows in zip(names, whole.split(layer.sizes), strict=True):
                found[f"{p}self_attn.{name}.{part}"] = rows
        gate, value = layer.fi.weight.chunk(2)
        found |= {
            f"{p}input_layernorm.weight": layer.ln1.weight,
            f"{p}self_attn.o_proj.weight": layer.o.weight,
            f"{p}post_attention_layernorm.weight": layer.ln2.weight,
            f"{p}mlp.gate_proj.weight": gate,
            f"{p}mlp.up_proj.weight": value,
            f"{p}mlp.down_proj.weight": layer.fo.weight,
        }
        if layer.q_norm is not None and layer.k_norm is not None:
            found[f"{p}self_attn.q_norm.weight"] = layer.q_norm.weight
            found[f"{p}self_attn.k_norm.weight"] = layer.k_norm.weight
    return found
