"""Features for training: the PLOT rows of tokenised texts, looked up when a batch first needs them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hmi.model.memory import keep_less_if_grown
from hmi.model.sources.root import Root
from hmi.model.text.batching import Encoded
from hmi.training.fit.backbones import Examples, Features
from hmi.training.fit.row_cache import RowCache
from hmi.training.tasks.splits import Split, split_bags
from plot_store import Reader


def features_of(root: Root, reader: Reader, texts: Sequence[Encoded]) -> list[Tensor]:
    """The upper layers' input for each text: PLOT rows plus position and type bias, fp32 [T_i, dim]."""
    return list(root.add_bias(_packed(reader, texts), texts).split([len(t) for t in texts]))


def plot_rows(reader: Reader, texts: Sequence[Encoded]) -> list[Tensor]:
    """The PLOT rows of each text, fp32 [T_i, dim]."""
    return list(_packed(reader, texts).split([len(t) for t in texts]))


def _packed(reader: Reader, texts: Sequence[Encoded]) -> Tensor:
    ids = np.concatenate([np.asarray(t.ids, np.int32) for t in texts])
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    rows, _ = reader.lookup(ids, offsets)
    reader.let_go()  # else a training would come to hold most of the PLOT
    keep_less_if_grown()
    return torch.from_numpy(rows)


def examples_of(
    root: Root, reader: Reader, split: Split, targets: Sequence[Sequence[float]], buckets: int
) -> Examples:
    """The windows of a split with their targets. buckets: the number of buckets of lexical features.

    A look-up and the lexical features of a window take up to a tenth of a training step, so they are kept.
    """
    lengths, types = [len(e) for e in split.encoded], [e.types for e in split.encoded]
    features = RowCache(_looked_up(root, reader, split.encoded), lambda rows: rows.nbytes, cheap=True)
    bags = split_bags(split, buckets, features)
    kept = None if bags is None else RowCache(bags, lambda bag: bag.nbytes, cheap=True)
    return Examples(lengths, types, features, targets, kept)


def dev_examples(root: Root, reader: Reader, split: Split, buckets: int) -> Examples:
    """The windows of a split without targets, for predictions."""
    return examples_of(root, reader, split, [[]] * len(split.encoded), buckets)


def _looked_up(root: Root, reader: Reader, texts: list[Encoded]) -> Features:
    def looked_up(rows: Sequence[int]) -> list[Tensor]:
        # Clones, since views would keep the rows of a whole batch.
        return [each.clone() for each in features_of(root, reader, [texts[i] for i in rows])]

    return looked_up
