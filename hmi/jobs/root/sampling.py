"""The texts that an import of a root learns from, and those by which its fidelity is measured."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

from hmi.errors import InvalidInput
from hmi.jobs.options import ImportRootOptions
from hmi.model.sources.causal import CausalLower
from hmi.model.sources.lower import LocalLower
from hmi.model.text.batching import Encoded
from hmi.training.data.corpus import read_documents

Texts = dict[str, list[Encoded]]  # by kind
Fidelity = tuple[dict[str, float], dict[str, dict[str, float]]]  # over all texts; by kind
Encode = Callable[[list[str]], list[Encoded]]
"""Tokenises pieces of text to at most LENGTH tokens each. May add some texts."""
MAX_TEXTS = 40_000
"""Locality is learnt from at most this many texts."""
FIDELITY_TEXTS = 160
"""An import measures fidelity on this many texts over all files, but on at most a third of each
file's. `measure_root` takes this many of each file."""
MIN_TEXTS = 100
"""Learning locality takes at least this many texts."""
LENGTH = 256
_KIND = re.compile(r"text-([a-z][a-z0-9-]*)")


def sample_texts(encode: Encode, paths: list[Path], seed: int, most: int) -> tuple[list[Encoded], Texts]:
    """Sample the files evenly. Returns the shuffled texts to learn from, and the held-out ones by kind.

    At most `most` pieces are drawn in all, besides those that `encode` adds.
    """
    rng = random.Random(seed)
    texts: list[Encoded] = []
    held_out: Texts = {}
    for path in paths:
        lines = [piece_of(d, rng) for d in read_documents(path)]
        lines = rng.sample(lines, min(len(lines), most // len(paths)))
        held = min(-(-FIDELITY_TEXTS // len(paths)), len(lines) // 3)
        encoded = [[e for e in encode(some) if len(e) > 4] for some in (lines[:held], lines[held:])]
        held_out.setdefault(_kind_of(path), []).extend(encoded[0])
        texts += encoded[1]
    rng.shuffle(texts)
    return texts, held_out


def check_learnable(
    source: str,
    lower: LocalLower | CausalLower,
    shipped: Path | None,
    texts: list[Encoded],
    paths: list[Path],
    options: ImportRootOptions,
) -> None:
    """Raise InvalidInput if there is nothing to start from, or too little text to learn locality from.

    source: its name. shipped: the locality weights that ship for it.
    """
    missing = f"no locality weights ship for {source} split at {lower.depth} with n = {lower.n}"
    if options.start == "shipped" and shipped is None:
        raise InvalidInput(f"{missing}: leave start=shipped out", field="options.start")
    if not paths:
        why = missing if shipped is None else "locality is learnt from text"
        raise InvalidInput(f"{why}: give unlabelled text (--text) to learn from", field="texts")
    if len(texts) < MIN_TEXTS:
        raise InvalidInput(
            f"{len(texts)} usable texts are too few to learn locality: give at least "
            f"{FIDELITY_TEXTS + MIN_TEXTS} lines",
            field="texts",
        )


def piece_of(document: str, rng: random.Random) -> str:
    """A random run of words of a long document, so that training also sees texts that
    start in mid-document."""
    words = document.split()
    if len(words) <= 60 or rng.random() < 0.3:
        return document[:3000]
    length = rng.choice((20, 40, 160))
    start = rng.randrange(max(1, len(words) - length))
    return " ".join(words[start : start + length])


def _kind_of(path: Path) -> str:
    found = _KIND.match(path.name)
    return found[1] if found else "general"
