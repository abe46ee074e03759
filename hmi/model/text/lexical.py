"""Lexical features: features of words and tokens alone, hashed into a small table per tenant.

They make up for three limits. Frozen layers cannot learn new words. A tokenizer that lower-cases and splits
words loses the capitals and shapes by which names of genes, chemicals and products are recognised. Lower
layers that see three tokens at a time cannot match two texts word by word. A linear model of such features
is cheap. It is trained with the module, and its scores are added to the head's. The features are those of
feature-based taggers; the hashing is that of Weinberger et al. (2009).

The features are, for

- a word to be tagged: the word in lower case, its shape (Aa0-), prefix, suffixes, and its character 3-grams
  and 4-grams; the first six of these features of each direct neighbour and the first two of each word next to
  those; the pair that the word forms with the word before it
- a text: its tokens, and its pairs of neighbouring tokens
- a pair of texts: the tokens in one text or both; the pairs of neighbouring tokens in only one; where a token
  is in both texts but followed by different tokens, these two; the counts of tokens and of pairs in only one.
  The alignment of the texts is scored beside them (`hmi.model.tenant.alignment`)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np
import torch
import torch.nn.functional as F
import xxhash
from hmi_kernels.text.words import FAR, NEAR, word_features
from numpy.typing import NDArray
from torch import Tensor, nn

from hmi.core import HEADLESS, Task
from hmi.model.tenant.alignment import Alignment, alignment_from
from hmi.model.tenant.artefact import tensors_below
from hmi.model.text.batching import Encoded
from hmi.model.text.tokenizer import Text
from hmi.model.text.windows import first_pieces

BUCKETS = 1 << 13
"""Rows of a new table."""
WIDTH = 8
"""The most columns of the table. With more labels, a learnt map takes the columns to the labels."""
BY_DEFAULT: frozenset[Task] = frozenset({"tagging", "pair"})
"""Tasks that use lexical features by default, since they gain from them
(docs/design/0003-tenant-module.md)."""
MAX_WORD = 64
"""Features of a word are taken from its first characters, this many."""
SHAPE_RUNS = 8
"""The most characters of a word's shape."""
MAX_COUNT = 8
"""Larger counts in the features of a pair are capped at this."""

Codes = NDArray[np.uint64]


@dataclass(frozen=True)
class Bags:
    """The hashed features of one window: a bag for each word to be tagged, else one bag."""

    ids: Tensor
    """int64 [features]: rows of the table. Bag i has ids[offsets[i]:offsets[i + 1]]."""
    offsets: Tensor
    """int64 [bags + 1]."""
    rows: Tensor
    """int64 [bags]: bag i's scores are added to the head's output at rows[i], the first piece of its word;
    0 if the text has one output."""
    aligned: Tensor | None = None
    """fp32 [`aligned_size`]: the alignment of a pair of texts; None: none was computed."""

    @property
    def nbytes(self) -> int:
        aligned = 0 if self.aligned is None else self.aligned.nbytes
        return self.ids.nbytes + self.offsets.nbytes + self.rows.nbytes + aligned


class Lexical(nn.Module):
    """Scores from features: a table [buckets, min(labels, WIDTH)], initially zero, and with more than WIDTH
    labels a map [labels, WIDTH]. For pairs of texts there may also be scores from their alignment."""

    def __init__(self, buckets: int, labels: int, alignment: Alignment | None = None) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(buckets, min(labels, WIDTH)))
        self.out = nn.Parameter(torch.randn(labels, WIDTH) / 2) if labels > WIDTH else None
        self.alignment = alignment

    @property
    def buckets(self) -> int:
        return len(self.table)

    def scores(self, bags: Sequence[Bags], dropout: float = 0.0) -> Tensor:
        """The scores of all bags of all windows, [bags, labels]. Either all bags are aligned or none is.

        `dropout` is the probability that a feature is left out. The others are not scaled up, so that a
        word is recognised by any part of its features.
        """
        ids = torch.cat([bag.ids for bag in bags])
        sizes = torch.cat([bag.offsets.diff() for bag in bags])
        weights = None if not dropout else (torch.rand(len(ids)) >= dropout).to(self.table.dtype)
        found = F.embedding_bag(
            ids, self.table, sizes.cumsum(0) - sizes, mode="sum", per_sample_weights=weights
        )
        scores = found if self.out is None else F.linear(found, self.out)
        if self.alignment is None or bags[0].aligned is None:
            return scores
        of_pairs: Tensor = self.alignment(aligned_in(bags))
        return scores + of_pairs

    def forward(self, logits: Tensor, bags: Sequence[Bags], dropout: float = 0.0) -> Tensor:
        """Add the scores of B windows to the head's outputs: [B, labels], in tagging [B, T, labels]."""
        if logits.dim() == 2:
            return logits + self.scores(bags, dropout)
        size, length = logits.shape[:2]
        return self.add_packed(logits.flatten(0, 1), bags, [length] * size, dropout).view_as(logits)

    def add_packed(
        self, logits: Tensor, bags: Sequence[Bags], lengths: Sequence[int], dropout: float = 0.0
    ) -> Tensor:
        """Add the windows' scores to a head's outputs [sum of lengths, labels], lengths[i] for window i.

        Further outputs, which a regression's ramp has, get no scores.
        """
        starts = [0, *accumulate(lengths)]
        at = torch.cat([bag.rows + start for bag, start in zip(bags, starts, strict=False)])
        scores = self.scores(bags, dropout)
        more = logits.shape[1] - scores.shape[1]
        return logits.index_add(0, at, F.pad(scores, (0, more)) if more else scores)


def lexical_buckets(task: Task, wanted: bool | None) -> int:
    """The number of rows of a task's table, 0 for no lexical features. `wanted` None: the task's default.

    Models without a head never have them, because they have no outputs.
    """
    if task in HEADLESS:
        return 0
    return BUCKETS if (task in BY_DEFAULT if wanted is None else wanted) else 0


def lexical_from(state: Mapping[str, Tensor]) -> Lexical:
    """Rebuild from the tensors `table` and, if they exist, `out` and those of `alignment`."""
    table, out = state["table"], state.get("out")
    labels = table.shape[1] if out is None else len(out)
    alignment = alignment_from(tensors_below(state, "alignment")) if has_alignment(state) else None
    lexical = Lexical(len(table), labels, alignment)
    lexical.load_state_dict(dict(state))
    return lexical.eval().requires_grad_(False)


def aligned_in(bags: Sequence[Bags]) -> Tensor:
    """The alignments [bags, `aligned_size`] of bags that all have one."""
    return torch.stack([bag.aligned for bag in bags if bag.aligned is not None])


def not_aligned(bags: Sequence[Bags]) -> list[Bags]:
    """The same bags without their alignments."""
    return [replace(bag, aligned=None) for bag in bags]


def has_alignment(state: Mapping[str, Tensor]) -> bool:
    """Return whether these tensors of `Lexical` include an alignment. Pairs of earlier releases have none."""
    return "alignment.vectors" in state


def bags_of(text: Text, window: Encoded, buckets: int) -> Bags:
    """The features of one window: of its words if the text is split into words, else of its tokens."""
    return word_bags(text, window, buckets) if isinstance(text, list) else text_bag(window, buckets)


def word_bags(words: Sequence[str], window: Encoded, buckets: int) -> Bags:
    """A bag for each word that begins in `window`. The words' neighbours may lie outside the window.

    Words further away are not read, since a text may be far longer than its windows.
    """
    rows = first_pieces(window.words)
    first, last = max(0, min(rows, default=0) - 2), max(rows, default=-1) + 3
    own = [codes_of(word[:MAX_WORD]) for word in words[first:last]]
    starts = np.cumsum([0, *map(len, own)], dtype=np.int64)
    codes = np.concatenate(own) if own else np.empty(0, np.uint64)
    ids = np.empty(len(codes) + len(own) * (2 * NEAR + 2 * FAR + 1), np.int64)
    offsets = np.empty(len(own) + 1, np.int64)
    word_features(codes, starts, buckets, ids, offsets)
    parts = [ids[offsets[word - first] : offsets[word - first + 1]] for word in rows]
    return _bags(parts, list(rows.values()))


def text_bag(window: Encoded, buckets: int) -> Bags:
    """The single bag of a text's window or of a pair of texts."""
    first, second = _tokens(window, 0), _tokens(window, 1)
    codes = _pair_codes(first, second) if len(second) else _text_codes(first)
    return _bags([((codes >> np.uint64(32)) * np.uint64(buckets) >> np.uint64(32)).astype(np.int64)], [0])


@lru_cache(maxsize=1 << 16)
def codes_of(word: str) -> Codes:
    """The features of a word as 64-bit codes, the most telling first. Cached, because words recur.

    Callers cut the word to MAX_WORD characters.
    """
    lower = word.lower()
    padded = f"<{lower}>"
    parts = [
        f"w{lower}",
        f"s{shape_of(word)}",
        f"p{lower[:3]}",
        f"3{lower[-3:]}",
        f"2{lower[-2:]}",
        f"4{lower[-4:]}",
    ]
    parts += [f"c{padded[i : i + size]}" for size in (3, 4) for i in range(len(padded) - size + 1)]
    codes = np.array([xxhash.xxh3_64_intdigest(part.encode()) for part in parts], np.uint64)
    codes.flags.writeable = False
    return codes


def shape_of(word: str) -> str:
    """`IL-2Ra` -> `A-0Aa`: each run of capitals, small letters or digits becomes A, a or
    0. Other characters stay."""
    out = ""
    for char in word:
        kind = "A" if char.isupper() else "a" if char.islower() else "0" if char.isdigit() else char
        if not out.endswith(kind):
            out += kind
    return out[:SHAPE_RUNS]


def _text_codes(tokens: list[int]) -> Codes:
    """The features of a text: each distinct token and pair of neighbours."""
    return _hashed([(0, t, 0) for t in tokens] + [(1, a, b) for a, b in _neighbours(tokens)])


def _pair_codes(first: list[int], second: list[int]) -> Codes:
    one, other = set(first), set(second)
    pairs, others = set(_neighbours(first)), set(_neighbours(second))
    follows = dict(_neighbours([0, *first]))
    features = (
        [(2, t, 0) for t in one - other] + [(3, t, 0) for t in other - one] + [(4, t, 0) for t in one & other]
    )
    features += [(5, a, b) for a, b in pairs - others] + [(6, a, b) for a, b in others - pairs]
    features += [(7, follows[a], b) for a, b in _neighbours([0, *second]) if a in follows and follows[a] != b]
    left, right = (min(MAX_COUNT, len(x)) for x in (one - other, other - one))
    left_pairs, right_pairs = (min(MAX_COUNT, len(x)) for x in (pairs - others, others - pairs))
    return _hashed([*features, (8, left, 0), (9, right, 0), (10, left, right), (11, left_pairs, right_pairs)])


def _neighbours(tokens: list[int]) -> list[tuple[int, int]]:
    return list(pairwise(tokens))


def _hashed(features: list[tuple[int, int, int]]) -> Codes:
    """Hash each distinct feature (splitmix64's finaliser), in a fixed order so that sums are reproducible."""
    each = np.array(sorted(set(features)), np.uint64).reshape(-1, 3)
    x = each[:, 0] * np.uint64(0x9E3779B97F4A7C15) + (each[:, 1] << np.uint64(32)) + each[:, 2]
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    mixed: Codes = x ^ (x >> np.uint64(31))
    return mixed


def _tokens(window: Encoded, kind: int) -> list[int]:
    """The window's tokens of type `kind`, without [CLS] and [SEP]."""
    each = zip(window.ids, window.types, window.words, strict=True)
    return [token for token, of, word in each if of == kind and word is not None]


def _bags(parts: list[NDArray[np.int64]], rows: list[int]) -> Bags:
    ids = np.concatenate(parts) if parts else np.empty(0, np.int64)
    offsets = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    return Bags(torch.from_numpy(ids), torch.from_numpy(offsets), torch.tensor(rows, dtype=torch.int64))
