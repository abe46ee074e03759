"""Tiny real models with tokenizers in Hugging Face's format: a random BERT and a random MPNet of 4 layers."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from hmi.model.network.shape import EncoderShape

TEXT = """
the a of and in cell gene protein market price stock trade good bad film plot actor great poor
loss profit bank acid drug dose cancer mouse rises falls shows binds sells likes hates was is very
not new old
"""
WORDS = TEXT.split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = ["##s", "##ed", "##ing", "un", "##known"]
DIM, HEADS, LAYERS, FFN, POSITIONS = 32, 4, 4, 64, 64
PLAIN = list(dict.fromkeys([*SPECIAL, *WORDS, *PIECES, *"abcdefghijklmnopqrstuvwxyz.,"]))
TINY = EncoderShape(len(PLAIN), DIM, HEADS, LAYERS, FFN, POSITIONS, 2, 1e-12)


def write_tiny_source(folder: Path, seed: int = 0, shape: EncoderShape = TINY) -> Path:
    """Write config.json, model.safetensors and tokenizer.json into `folder`; returns it. A larger shape's
    vocabulary has words that no text has."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [*PLAIN, *(f"word{i}" for i in range(shape.vocab - len(PLAIN)))]
    vocab = {w: i for i, w in enumerate(words)}
    config = {
        "model_type": "bert",
        "hidden_act": "gelu",
        "vocab_size": len(vocab),
        "hidden_size": shape.dim,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "intermediate_size": shape.ffn,
        "max_position_embeddings": shape.positions,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(_weights(shape, seed), folder / "model.safetensors")
    _tokenizer(vocab).save(str(folder / "tokenizer.json"))
    return folder


def write_tiny_mpnet(folder: Path, seed: int = 0) -> Path:
    """As `write_tiny_source`, but an MPNet: <s> is 0, padding is 1, positions begin at 2, attention is
    relative, and there are no token types."""
    folder.mkdir(parents=True, exist_ok=True)
    specials = ["<s>", "<pad>", "</s>", "<unk>", "[UNK]"]
    words = list(dict.fromkeys([*WORDS, *PIECES, *"abcdefghijklmnopqrstuvwxyz.,"]))
    vocab = {w: i for i, w in enumerate([*specials, *words, "<mask>"])}
    config = {
        "model_type": "mpnet",
        "hidden_act": "gelu",
        "vocab_size": len(vocab),
        "hidden_size": DIM,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "intermediate_size": FFN,
        "pad_token_id": 1,
        "max_position_embeddings": POSITIONS + 2,
        "relative_attention_num_buckets": 32,
        "layer_norm_eps": 1e-5,
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(_as_mpnet(_weights(replace(TINY, vocab=len(vocab)), seed), seed), folder / "model.safetensors")
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    tokenizer.add_special_tokens([*specials, "<mask>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def random_texts(count: int, seed: int = 0, low: int = 2, high: int = 20) -> list[str]:
    """`count` texts of `low` to `high` words."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(low, high))) for _ in range(count)]


def _weights(shape: EncoderShape, seed: int) -> dict[str, torch.Tensor]:
    g, dim, ffn = torch.Generator().manual_seed(seed), shape.dim, shape.ffn

    def draw(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=g) * 0.2 * (DIM / dim) ** 0.5

    w = {
        "embeddings.word_embeddings.weight": torch.randn(shape.vocab, dim, generator=g),
        "embeddings.position_embeddings.weight": torch.randn(shape.positions, dim, generator=g) * 0.3,
        "embeddings.token_type_embeddings.weight": torch.randn(2, dim, generator=g) * 0.3,
        "embeddings.LayerNorm.weight": torch.ones(dim),
        "embeddings.LayerNorm.bias": torch.zeros(dim),
    }
    linear = {
        "attention.self.query": (dim, dim),
        "attention.self.key": (dim, dim),
        "attention.self.value": (dim, dim),
        "attention.output.dense": (dim, dim),
        "intermediate.dense": (ffn, dim),
        "output.dense": (dim, ffn),
    }
    for i in range(shape.layers):
        p = f"encoder.layer.{i}."
        for name, size in linear.items():
            w[f"{p}{name}.weight"], w[f"{p}{name}.bias"] = draw(*size), draw(size[0]) * 0.1
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            w[f"{p}{name}.weight"], w[f"{p}{name}.bias"] = torch.ones(dim), torch.zeros(dim)
    return w


def _as_mpnet(w: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """BERT's weights under MPNet's names, with the parts that only MPNet has."""
    renamed = {
        "attention.self.query": "attention.attn.q",
        "attention.self.key": "attention.attn.k",
        "attention.self.value": "attention.attn.v",
        "attention.output.dense": "attention.attn.o",
        "attention.output.LayerNorm": "attention.LayerNorm",
    }
    out = {}
    for name, value in w.items():
        for bert, mpnet in renamed.items():
            name = name.replace(bert, mpnet)
        out[name] = value
    del out["embeddings.token_type_embeddings.weight"]
    g = torch.Generator().manual_seed(seed + 1)
    out["embeddings.position_embeddings.weight"] = torch.randn(POSITIONS + 2, DIM, generator=g) * 0.3
    out["encoder.relative_attention_bias.weight"] = torch.randn(32, HEADS, generator=g)
    return out


def _tokenizer(vocab: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", vocab["[SEP]"]), ("[CLS]", vocab["[CLS]"]))
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer
