"""Features for training: the PLOT rows of tokenised texts, looked up on demand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hmi.model.batching import Encoded
from hmi.model.root import Root
from hmi.training.backbones import Examples
from hmi.training.splits import Split, split_bags
from plot_store import Reader


def features_of(root: Root, reader: Reader, texts: Sequence[Encoded]) -> list[Tensor]:
    """The upper layers' input for each text: PLOT rows plus position and type bias, fp32 [T_i, dim]."""
    ids = np.concatenate([np.asarray(t.ids, np.int32) for t in texts])
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    rows, _ = reader.lookup(ids, offsets)
    return list(root.add_bias(torch.from_numpy(rows), texts).split([len(t) for t in texts]))


def examples_of(
    root: Root, reader: Reader, split: Split, targets: Sequence[Sequence[float]], buckets: int
) -> Examples:
    """The windows of a split with their targets. buckets: the number of buckets of lexical features."""
    lengths, types = [len(e) for e in split.encoded], [e.types for e in split.encoded]
    features = _looked_up(root, reader, split.encoded)
    return Examples(lengths, types, features, targets, split_bags(split, buckets, features))


def dev_examples(root: Root, reader: Reader, split: Split, buckets: int) -> Examples:
    """The windows of a split without targets, for predictions."""
    return examples_of(root, reader, split, [[]] * len(split.encoded), buckets)


def _looked_up(root: Root, reader: Reader, texts: list[Encoded]) -> Any:
    # Features are not cached: a look-up takes about 1% of a training step, and memory use stays constant.
    return lambda rows: features_of(root, reader, [texts[i] for i in rows])
