"""Learns what a model's own texts are like, so that it can say of others that it does not know.

The rule, fixed before any test: the threshold is the similarity that a share of the model's rows reach (97%
unless the tenant sets another), where a row is compared with means of other rows only. Rows are cut into
FOLDS parts, and each part is compared with the means of the others. Nothing is known of foreign texts
beforehand, so the rule fixes what it costs: the share of the tenant's own texts that are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hmi.core import KNOWN_SHARE
from hmi.model.batching import READ_TOKENS, in_parts
from hmi.model.known import Vectors, at_shares, class_means, mean_rows, similarities
from hmi.model.root import Root
from hmi.model.shares import threshold_of
from hmi.model.tasks import TaskKind
from hmi.training.features import features_of
from hmi.training.splits import Split
from plot_store import Reader

FOLDS = 10
"""Parts of the rows. Each is compared with the means of the others."""
ENOUGH = 40
"""The fewest rows from which a threshold is made."""


@dataclass(frozen=True)
class Known:
    """The record by which a version tells its own texts from others. Empty if the rows are too few."""

    tensors: dict[str, Tensor]
    """`means`, fp16 [labels, dim]."""
    shares: tuple[float, ...]
    """`hmi.model.known.at_shares` of the model's rows."""
    metrics: dict[str, Any]
    """Figures for the report."""


def learn_known(root: Root, reader: Reader, task: TaskKind, splits: Sequence[Split]) -> Known:
    """Learn from the rows of these splits, whose labels must be the user's own."""
    vectors, owners, groups = list[Vectors](), list[int](), list[str]()
    for split in splits:
        first = len(groups)
        groups += [str(row.label) if task.name in ("classification", "pair") else "" for row in split.rows]
        vectors += _vectors(root, reader, split)
        owners += [first + i for i, mine in enumerate(split.of_rows()) for _ in mine]
    if len(groups) < ENOUGH:
        return Known({}, (), {})
    found, which = np.concatenate(vectors), np.array(owners)
    names = np.array(groups)[which]
    each = np.empty(len(found), np.float32)
    for fold in range(FOLDS):
        mine = which % FOLDS == fold
        each[mine] = similarities(found[mine], class_means(found[~mine], names[~mine]))
    own = np.bincount(which, each) / np.bincount(which)
    means = torch.from_numpy(class_means(found, names)).half()
    shares = at_shares(own.astype(np.float32))
    limit = round(threshold_of(shares, KNOWN_SHARE) or 0.0, 4)
    about = {"rows": len(groups), "share": KNOWN_SHARE, "threshold": limit, "bytes": means.nbytes}
    return Known({"means": means}, shares, about)


def _vectors(root: Root, reader: Reader, split: Split) -> list[Vectors]:
    """The vectors of a split's windows, in the order of their rows."""
    order = [i for mine in split.of_rows() for i in mine]
    lengths, found = [len(e) for e in split.encoded], list[Vectors]()
    for part in in_parts(order, lengths, READ_TOKENS):
        some = [split.encoded[i] for i in part]
        rows = torch.cat(features_of(root, reader, some)).numpy()
        found.append(mean_rows(rows, np.cumsum([0, *map(len, some)]).tolist()))
    return found
