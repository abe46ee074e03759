"""Which rows are held out, and which rows a model was trained on. Both depend on a row's content,
not on its position.

A row's key is a hash of its input. The rows of a label with the smallest keys are held out. So a
row that is held out now is held out of the next update's rows too, as far as the shares allow,
whatever the other rows are.
"""

from __future__ import annotations

import base64
import json
import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

from hmi.errors import InvalidData
from hmi.training.data.rows import Row
from hmi.training.golds import Gold
from hmi.training.recipe import HELD_OUT, HeldOut

MOST_KEYS = 1 << 14
"""Keys that a version keeps of the rows it was trained on, the smallest ones: 64 KB. All of 16,384
rows, and of more those that an update would hold out."""

RowKeys = NDArray[np.uint32]
"""The keys of rows, ascending, each once."""


def key_of(row: Row) -> int:
    """32 bits of a hash of the row's input."""
    return xxhash.xxh3_64_intdigest(json.dumps(row.text, ensure_ascii=False).encode()) >> 32


def joined_keys(rows: Sequence[Row], *before: RowKeys) -> RowKeys:
    """The keys of these rows and those of before: of too many the smallest."""
    mine = np.array([key_of(row) for row in rows], np.uint32)
    return np.unique(np.concatenate([mine, *before]))[:MOST_KEYS]


def keys_as_text(keys: RowKeys) -> str:
    return base64.b64encode(keys.astype("<u4").tobytes()).decode()


def keys_from_text(text: str) -> RowKeys:
    return np.frombuffer(base64.b64decode(text), "<u4").astype(np.uint32)


def are_seen(rows: Sequence[Row], keys: RowKeys) -> list[bool]:
    """For each row whether its key is among these keys."""
    return [bool(seen) for seen in np.isin(np.array([key_of(row) for row in rows], np.uint32), keys)]


def hold_out(rows: list[Row], held_out: HeldOut = HELD_OUT) -> tuple[list[Row], list[Row]]:
    """(training rows, held-out rows), the latter as many as `held_out` says.

    In tasks with one label a row, each label gives its share, but never its last row. Raises
    InvalidData if no two rows have the same label.
    """
    share, wanted = held_out.share_of(len(rows)), held_out.wanted(len(rows))
    keys = [key_of(row) for row in rows]
    groups: dict[Gold, list[int]] = defaultdict(list)
    for i in sorted(range(len(rows)), key=lambda i: (keys[i], i)):
        label = rows[i].label
        groups[label if isinstance(label, str) else ""].append(i)
    spare = [i for g in groups.values() for i in g[: min(len(g) - 1, math.ceil(share * len(g)))]]
    held = set(sorted(spare, key=lambda i: (keys[i], i))[:wanted])
    if not held:
        raise InvalidData("no two rows have the same label: give at least two rows of a label", field="data")
    return [r for i, r in enumerate(rows) if i not in held], [r for i, r in enumerate(rows) if i in held]
