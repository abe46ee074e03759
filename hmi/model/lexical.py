"""Lexical features: features of words and tokens alone, hashed into a small table per tenant.

They make up for three limits. Frozen layers cannot learn new words. A tokenizer that lower-cases and splits
words loses the capitals and shapes by which names of genes, chemicals and products are recognised. Lower
layers that see three tokens at a time cannot match two texts word by word. A linear model of such features is
cheap, is trained with the module, and adds its scores to the head's. Source: feature-based taggers; hashing
by Weinberger et al. (2009).

A word to be tagged has as features: itself in lower case, its shape (Aa0-), prefix, suffixes, character
trigrams and fourgrams; the first six of these of its direct neighbours, two of the next ones; its pair with
the word before. A text has its tokens and pairs of neighbouring tokens. A pair of texts has the tokens in one
or both, the token pairs in one, the tokens that follow the same token in both, and the number of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np
import torch
import torch.nn.functional as F
import xxhash
from hmi_kernels.text.words import FAR, NEAR, word_features
from numpy.typing import NDArray
from torch import Tensor, nn

from hmi.core import Task
from hmi.model.batching import Encoded
from hmi.model.tokenizer import Text
from hmi.model.windows import first_pieces

BUCKETS = 1 << 13
WIDTH = 8
"""Numbers in a row of the table: with more labels than this, the rows are mapped to the labels."""
BY_DEFAULT: frozenset[Task] = frozenset({"tagging", "pair"})
"""Tasks that gain from them (docs/design/0003-tenant-module.md)."""
LONGEST = 64
"""Characters of a word that are looked at."""
SHAPE_RUNS = 8
MOST = 8
"""Larger counts are this one."""

Codes = NDArray[np.uint64]


@dataclass(frozen=True)
class Bags:
    """Features of one window, as buckets of a table.

    Bag w is ids[offsets[w]:offsets[w + 1]], ids int64 [F], offsets int64 [bags + 1]; its scores are added to
    the head's output at rows[w]: a word's first piece, or 0 where a text has one output.
    """

    ids: Tensor
    offsets: Tensor
    rows: Tensor


class Lexical(nn.Module):
    """Scores from features: a table [buckets, min(labels, WIDTH)], zero at first, and where there are more
    labels a map [labels, WIDTH]."""

    def __init__(self, buckets: int, labels: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(buckets, min(labels, WIDTH)))
        self.out = nn.Parameter(torch.randn(labels, WIDTH) / 2) if labels > WIDTH else None

    @property
    def buckets(self) -> int:
        return len(self.table)

    def scores(self, bags: Sequence[Bags], dropout: float = 0.0) -> Tensor:
        """Windows' features -> scores of all their bags [bags, labels]. `dropout` leaves features out, and
        does not scale the others up: a word must be known by any part of its features."""
        ids = torch.cat([bag.ids for bag in bags])
        sizes = torch.cat([bag.offsets.diff() for bag in bags])
        weights = None if not dropout else (torch.rand(len(ids)) >= dropout).to(self.table.dtype)
        found = F.embedding_bag(
            ids, self.table, sizes.cumsum(0) - sizes, mode="sum", per_sample_weights=weights
        )
        return found if self.out is None else F.linear(found, self.out)

    def forward(self, logits: Tensor, bags: Sequence[Bags], dropout: float = 0.0) -> Tensor:
        """Adds the scores of B windows' bags to the head's outputs [B, labels], for tagging [B, T,
        labels]."""
        if logits.dim() == 2:
            return logits + self.scores(bags, dropout)
        size, length = logits.shape[:2]
        return self.add_packed(logits.flatten(0, 1), bags, [length] * size, dropout).view_as(logits)

    def add_packed(
        self, logits: Tensor, bags: Sequence[Bags], lengths: Sequence[int], dropout: float = 0.0
    ) -> Tensor:
        """Adds the scores of windows' bags to the outputs [outputs, labels] of a head, of which window i has
        lengths[i]."""
        starts = [0, *accumulate(lengths)]
        at = torch.cat([bag.rows + start for bag, start in zip(bags, starts, strict=False)])
        return logits.index_add(0, at, self.scores(bags, dropout))


def lexical_buckets(task: Task, wanted: bool | None) -> int:
    """Rows of the table for a task, 0 for none; None: as the task does by default. An embedding has no
    outputs."""
    if task == "embedding":
        return 0
    return BUCKETS if (task in BY_DEFAULT if wanted is None else wanted) else 0


def lexical_from(state: dict[str, Tensor]) -> Lexical:
    """Rebuild from its tensors, table and where it is there out."""
    table, out = state["table"], state.get("out")
    lexical = Lexical(len(table), table.shape[1] if out is None else len(out))
    lexical.load_state_dict(state)
    return lexical.eval().requires_grad_(False)


def bags_of(text: Text, window: Encoded, buckets: int) -> Bags:
    """One window's features, whose scores are added to the head's: of each word of a split text, else of its
    tokens."""
    return word_bags(text, window, buckets) if isinstance(text, list) else text_bag(window, buckets)


def word_bags(words: Sequence[str], window: Encoded, buckets: int) -> Bags:
    """Of each word of a text that begins in this window of it. Neighbours are those in the text, not in the
    window.

    Words beyond them are not looked at: a text may be far longer than what is read of it.
    """
    rows = first_pieces(window.words)
    first, last = max(0, min(rows, default=0) - 2), max(rows, default=-1) + 3
    own = [codes_of(word[:LONGEST]) for word in words[first:last]]
    starts = np.cumsum([0, *map(len, own)], dtype=np.int64)
    codes = np.concatenate(own) if own else np.empty(0, np.uint64)
    ids = np.empty(len(codes) + len(own) * (2 * NEAR + 2 * FAR + 1), np.int64)
    offsets = np.empty(len(own) + 1, np.int64)
    word_features(codes, starts, buckets, ids, offsets)
    parts = [ids[offsets[word - first] : offsets[word - first + 1]] for word in rows]
    return _bags(parts, list(rows.values()))


def text_bag(window: Encoded, buckets: int) -> Bags:
    """One bag of features, of a text's window or of a pair of texts."""
    first, second = _tokens(window, 0), _tokens(window, 1)
    codes = _pair_codes(first, second) if len(second) else _text_codes(first)
    return _bags([((codes >> np.uint64(32)) * np.uint64(buckets) >> np.uint64(32)).astype(np.int64)], [0])


@lru_cache(maxsize=1 << 16)
def codes_of(word: str) -> Codes:
    """The features of a word of at most LONGEST characters as 64-bit codes, the ones that tell most first.
    Kept, since words come again."""
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
    """`IL-2Ra` -> `A-0Aa`: runs of upper case, lower case and digits become one sign each, other signs
    stay."""
    out = ""
    for sign in word:
        kind = "A" if sign.isupper() else "a" if sign.islower() else "0" if sign.isdigit() else sign
        if not out.endswith(kind):
            out += kind
    return out[:SHAPE_RUNS]


def _text_codes(tokens: list[int]) -> Codes:
    """Every token and every pair of neighbours once."""
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
    left, right = (min(MOST, len(x)) for x in (one - other, other - one))
    few, many = (min(MOST, len(x)) for x in (pairs - others, others - pairs))
    return _hashed([*features, (8, left, 0), (9, right, 0), (10, left, right), (11, few, many)])


def _neighbours(tokens: list[int]) -> list[tuple[int, int]]:
    return list(pairwise(tokens))


def _hashed(features: list[tuple[int, int, int]]) -> Codes:
    """Each once, in a fixed order, so that sums are the same to the bit. The finaliser of splitmix64."""
    each = np.array(sorted(set(features)), np.uint64).reshape(-1, 3)
    x = each[:, 0] * np.uint64(0x9E3779B97F4A7C15) + (each[:, 1] << np.uint64(32)) + each[:, 2]
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    mixed: Codes = x ^ (x >> np.uint64(31))
    return mixed


def _tokens(window: Encoded, kind: int) -> list[int]:
    """A window's tokens of this type, without [CLS] and [SEP]."""
    each = zip(window.ids, window.types, window.words, strict=True)
    return [token for token, of, word in each if of == kind and word is not None]


def _bags(parts: list[NDArray[np.int64]], rows: list[int]) -> Bags:
    ids = np.concatenate(parts) if parts else np.empty(0, np.int64)
    offsets = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    return Bags(torch.from_numpy(ids), torch.from_numpy(offsets), torch.tensor(rows, dtype=torch.int64))
