"""Learns what a model's own texts are like, so that it can say of others that it does not know.

The rule, fixed before any test: the threshold is the similarity that a share of the model's rows reach (97%
unless the tenant sets another), where a row is compared with means of other rows only. Rows are cut into
FOLDS parts, and each part is compared with the means of the others. Nothing is known of foreign texts
beforehand, so the rule fixes what it costs: the share of the tenant's own texts that are refused.

Users ask shorter texts than the rows. So pieces of the rows are compared, too. They say how similar a text of
a given length is, and the threshold lies halfway between what the share of the rows and that of the pieces
reach (docs/design/0018-answers.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hmi.core import KNOWN_SHARE
from hmi.model.sources.root import Root
from hmi.model.tasks import TaskKind
from hmi.model.tenant.novelty import (
    Others,
    OwnTexts,
    Vectors,
    at_shares,
    by_length,
    class_means,
    similarities,
)
from hmi.model.tenant.novelty_threshold import threshold_of
from hmi.model.text.batching import READ_TOKENS, Encoded, in_parts
from hmi.training.fit.everyday import EVERYDAY
from hmi.training.fit.features import plot_rows
from hmi.training.tasks.splits import Split
from plot_store import Reader

FOLDS = 10
"""Parts of the rows. Each is compared with the means of the others."""
ENOUGH = 40
"""The fewest rows from which a threshold is made."""
PIECES = 4
"""The pieces of a window, of different lengths."""
CUT = 2_000
"""The windows of at most this many rows are cut to pieces, evenly chosen."""
LENGTHS = (1, 2, 3, 4, 6, 8, 11, 15, 20, 28, 40, 56, 80, 112, 160, 224, 320, 448)
"""The lengths of pieces in tokens, without special tokens; and the knots of `OwnTexts.lengths`."""
WIDTH = 0.3
"""What a knot says comes from texts about as long: their weights are normal in the logarithm of the length,
with this standard deviation."""
FEWEST = 20.0
"""A knot needs texts of this weight together."""
LEAST_SPREAD = 1e-3
"""Similarities at a knot are taken to be at least this far apart."""


@dataclass(frozen=True)
class Known:
    """The record by which a version tells its own texts from others. Empty if the rows are too few."""

    tensors: dict[str, Tensor]
    """Those of `OwnTexts`, fp16, but `lengths` in fp32."""
    shares: tuple[float, ...]
    """`hmi.model.tenant.novelty.at_shares` of the model's rows and of their pieces, the mean of both."""
    metrics: dict[str, Any]
    """Figures for the report."""


@dataclass(frozen=True)
class Found:
    """Vectors of rows' windows and of pieces of these."""

    vectors: Vectors
    """[vectors, dim]"""
    tokens: NDArray[np.int64]
    """[vectors]: the number of tokens of each."""
    owners: NDArray[np.int64]
    """[vectors]: the row that each comes from."""
    whole: NDArray[np.bool_]
    """[vectors]: whether it is of a whole window."""


def learn_known(root: Root, reader: Reader, task: TaskKind, splits: Sequence[Split]) -> Known:
    """Learn from the rows of these splits, whose labels must be the user's own."""
    groups = np.array([_group(task, row.label) for split in splits for row in split.rows])
    if len(groups) < ENOUGH:
        return Known({}, (), {})
    everyday = root.tokenizer.encode(EVERYDAY, root.max_length)
    found = _vectors(reader, splits)
    about = Others.of(np.stack([rows.mean(0) for rows in _plot_rows_of(reader, everyday)]), found.vectors)
    vectors, names = about.standardised(found.vectors), groups[found.owners]
    each = np.empty(len(vectors), np.float32)
    for fold in range(FOLDS):
        mine = found.owners % FOLDS == fold
        means = class_means(vectors[~mine & found.whole], names[~mine & found.whole].tolist())
        each[mine] = similarities(vectors[mine], means)
    lengths = length_table(each, found.tokens, found.tokens[found.whole])
    each = by_length(each, found.tokens.tolist(), lengths)
    shares = _shares(each, found)
    own = OwnTexts(class_means(vectors[found.whole], names[found.whole].tolist()), about, lengths)
    tensors = {k: torch.from_numpy(v) if k == "lengths" else _half(v) for k, v in own.tensors.items()}
    limit = round(threshold_of(shares, KNOWN_SHARE) or 0.0, 4)
    size = sum(tensor.nbytes for tensor in tensors.values())
    return Known(
        tensors, shares, {"rows": len(groups), "share": KNOWN_SHARE, "threshold": limit, "bytes": size}
    )


def length_table(found: Vectors, tokens: NDArray[np.int64], usual: NDArray[np.int64]) -> NDArray[np.float32]:
    """`OwnTexts.lengths` of texts with these similarities and numbers of tokens.

    usual: the numbers of tokens of whole texts; their median is the usual length. At each knot the factor
    and the offset bring the median of the texts about as long, and what 97% of them reach, to where those of
    the usual length are.
    """
    order = np.argsort(found)
    sorted_, logs = found[order], np.log(tokens[order].astype(np.float64))

    def at(length: float) -> tuple[float, float, float]:
        weights = np.exp(-0.5 * ((logs - np.log(length)) / WIDTH) ** 2)
        sums = np.cumsum(weights)
        low, middle = (
            float(sorted_[np.searchsorted(sums, share * sums[-1])]) for share in (1 - KNOWN_SHARE, 0.5)
        )
        return float(sums[-1]), middle, max(LEAST_SPREAD, middle - low)

    _, middle, spread = at(float(np.median(usual)))
    rows = list[tuple[float, float, float]]()
    for knot in LENGTHS:
        weight, here, apart = at(knot)
        if weight >= FEWEST:
            rows.append((knot, spread / apart, middle - here * spread / apart))
    return np.array(rows or [(1, 1.0, 0.0)], np.float32).T.copy()


def _shares(each: Vectors, found: Found) -> tuple[float, ...]:
    """The means of what shares of the rows reach, and of what the same shares of the pieces reach. A row's
    similarity is its windows' mean."""
    whole, owners = each[found.whole], found.owners[found.whole]
    rows = at_shares((np.bincount(owners, whole) / np.bincount(owners)).astype(np.float32))
    pieces = at_shares(each[~found.whole]) if (~found.whole).sum() >= ENOUGH else rows
    return tuple(round((a + b) / 2, 6) for a, b in zip(rows, pieces, strict=True))


def _vectors(reader: Reader, splits: Sequence[Split]) -> Found:
    """The vectors of the splits' windows and of their pieces, in the order of their rows."""
    rng, first = np.random.default_rng(0), 0
    vectors, tokens, owners, whole = list[Vectors](), list[int](), list[int](), list[bool]()
    step = -(-sum(len(split.rows) for split in splits) // CUT)
    for split in splits:
        windows = [(first + row, i) for row, mine in enumerate(split.of_rows()) for i in mine]
        read = _plot_rows_of(reader, [split.encoded[i] for _, i in windows])
        for (owner, i), rows in zip(windows, read, strict=True):
            pieces = _pieces(split.encoded[i], rng) if owner % step == 0 else []
            for some in [rows, *(rows[taken] for taken in pieces)]:
                vectors.append(some.mean(0))
                tokens.append(len(some))
                owners.append(owner)
                whole.append(some is rows)
        first += len(split.rows)
    return Found(np.stack(vectors), np.array(tokens), np.array(owners), np.array(whole))


def _pieces(text: Encoded, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """The tokens of pieces of a window: each is a few neighbours, with the special tokens."""
    inside = np.array([word is not None for word in text.words])
    special, own = np.flatnonzero(~inside), np.flatnonzero(inside)
    lengths = [length for length in LENGTHS if length < len(own)]
    chosen = rng.permutation(len(lengths))[:PIECES]
    starts = [(rng.integers(len(own) - lengths[i] + 1), lengths[i]) for i in chosen]
    return [np.concatenate([special, own[start : start + length]]) for start, length in starts]


def _plot_rows_of(reader: Reader, texts: Sequence[Encoded]) -> Iterator[Vectors]:
    """The PLOT rows of each text."""
    for part in in_parts(range(len(texts)), [len(text) for text in texts], READ_TOKENS):
        yield from (rows.numpy() for rows in plot_rows(reader, [texts[i] for i in part]))


def _group(task: TaskKind, label: object) -> str:
    return str(label) if task.name in ("classification", "pair") else ""


def _half(values: Vectors) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).half()
