"""Roots of language models: in memory, and as a folder like an encoder's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer as FastTokenizer
from torch import Tensor, nn

from hmi.errors import Damaged
from hmi.model.checked import ROOT_CURE
from hmi.model.files import read_tensors
from hmi.model.network.decoder import Decoder, DecoderLayer, run_layers, score
from hmi.model.network.shape import DecoderShape
from hmi.model.sources.causal import CausalLower
from hmi.model.sources.root import (
    GenerativeRootInfo,
    Root,
    check_files,
    load_part,
    load_root,
    read_any_info,
    save_files,
)
from hmi.model.text.generative import GenerativeTokenizer


class UpperDecoder(nn.Module):
    """The upper layers of a language model, and what turns their states into scores."""

    def __init__(self, shape: DecoderShape, split: int) -> None:
        super().__init__()
        self.shape = shape
        self.layers = nn.ModuleList(DecoderLayer(shape) for _ in range(shape.layers - split))
        self.norm = nn.RMSNorm(shape.dim, eps=shape.eps)
        self.scores = nn.Linear(shape.dim, shape.vocab, bias=False)
        self.first = nn.Parameter(torch.zeros(shape.dim))
        """The row of a text's begin token, which is not looked up."""

    def forward(self, rows: Tensor) -> Tensor:
        """rows [B, T, dim], a text's first tokens, as from a look-up -> the last states [B, T, dim]."""
        return run_layers(self.layers, rows, self.shape)

    def logits(self, states: Tensor) -> Tensor:
        """The last states [..., dim] -> the scores of the next token [..., vocab]. That of id 0 is -inf."""
        return score(self.norm(states), self.scores.weight)


@dataclass
class GenerativeRoot:
    """A language model's root in memory. `lower` is None if it was not loaded for building."""

    info: GenerativeRootInfo
    upper: UpperDecoder
    tokenizer: GenerativeTokenizer
    lower: CausalLower | None = None


def split_decoder(decoder: Decoder, split: int, begin: int, n: int) -> tuple[CausalLower, UpperDecoder]:
    """Copy a decoder's first `split` layers into a CausalLower, and the rest into upper layers."""
    lower, upper = CausalLower(decoder.shape, split, begin, n), UpperDecoder(decoder.shape, split)
    lower.word.load_state_dict(decoder.word.state_dict())
    lower.layers.load_state_dict(decoder.layers[:split].state_dict())
    upper.layers.load_state_dict(decoder.layers[split:].state_dict())
    upper.norm.load_state_dict(decoder.norm.state_dict())
    upper.scores.load_state_dict((decoder.scores or decoder.word).state_dict())
    set_first((lower, upper))
    return lower, upper


@torch.no_grad()
def set_first(parts: tuple[CausalLower, UpperDecoder]) -> None:
    """Set the row of the begin token to what the lower layers compute."""
    lower, upper = parts
    upper.first.copy_(lower.first_row())


def save_generative_root(folder: Path, root: GenerativeRoot) -> None:
    """Publish `root`, with its lower layers, as `folder`. Raises as `save_files`."""
    assert root.lower is not None
    fast = root.tokenizer.fast
    save_files(folder, root.info, root.lower, root.upper.state_dict(), lambda path: fast.save(str(path)))


def load_generative_root(folder: Path, *, with_lower: bool = False) -> GenerativeRoot:
    """Load a root for serving, or `with_lower` for building. Raises as `load_root`."""
    info = read_any_info(folder)
    assert isinstance(info, GenerativeRootInfo)
    check_files(folder, info, with_lower=with_lower)
    try:
        fast = FastTokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the library raises a bare Exception
        raise Damaged(f"root {info.name} cannot be used, {error}: {ROOT_CURE}") from error
    tokenizer = GenerativeTokenizer(fast, info.begin, info.ends, info.template)
    upper = UpperDecoder(info.shape, info.split)
    load_part(upper, read_tensors(folder / "upper.safetensors"), "")
    root = GenerativeRoot(info, upper.eval().requires_grad_(False), tokenizer)
    if with_lower:
        root.lower = CausalLower(info.shape, info.split, info.begin, info.n)
        load_part(root.lower, read_tensors(folder / "lower.safetensors"), "")
        root.lower.eval().requires_grad_(False)
    return root


def load_for_serving(folder: Path) -> Root | GenerativeRoot:
    """Load a root of either kind without its lower layers. Raises as `load_root`."""
    if isinstance(read_any_info(folder), GenerativeRootInfo):
        return load_generative_root(folder)
    return load_root(folder)


def load_for_building(folder: Path) -> Root | GenerativeRoot:
    """Load a root of either kind with its lower layers. Raises as `load_root`."""
    if isinstance(read_any_info(folder), GenerativeRootInfo):
        return load_generative_root(folder, with_lower=True)
    return load_root(folder, with_lower=True)
