"""Keys of rows: they decide which rows are held out, and record which rows a model was trained on.

A row's key is a hash of its input; its position does not matter. The rows of a label with the
smallest keys are held out. So a row that is held out now will also be held out of the next update's
rows, as far as the shares allow, whatever the other rows are.
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
from hmi.training.data.golds import Gold
from hmi.training.data.rows import Row
from hmi.training.plans.recipe import HELD_OUT, HeldOut

MAX_KEYS = 1 << 14
"""A version records at most this many keys of the rows it was trained on (64 KB). Of more it keeps
the smallest, whose rows an update would hold out."""

RowKeys = NDArray[np.uint32]
"""Distinct keys of rows, ascending."""


def key_of(row: Row) -> int:
    """The key of a row: 32 bits of a hash of its input."""
    return xxhash.xxh3_64_intdigest(json.dumps(row.text, ensure_ascii=False).encode()) >> 32


def joined_keys(rows: Sequence[Row], *before: RowKeys) -> RowKeys:
    """The union of the keys of `rows` and `before`; at most MAX_KEYS, the smallest."""
    mine = np.array([key_of(row) for row in rows], np.uint32)
    return np.unique(np.concatenate([mine, *before]))[:MAX_KEYS]


def keys_as_text(keys: RowKeys) -> str:
    return base64.b64encode(keys.astype("<u4").tobytes()).decode()


def keys_from_text(text: str) -> RowKeys:
    return np.frombuffer(base64.b64decode(text), "<u4").astype(np.uint32)


def are_seen(rows: Sequence[Row], keys: RowKeys) -> list[bool]:
    """For each row, whether its key is among `keys`."""
    return [bool(seen) for seen in np.isin(np.array([key_of(row) for row in rows], np.uint32), keys)]


def hold_out(rows: list[Row], held_out: HeldOut = HELD_OUT) -> tuple[list[Row], list[Row]]:
    """Split rows into (training rows, held-out rows). `held_out` gives their number.

    In tasks with one label a row, each label gives up its share, but never its last row. Raises
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
        raise InvalidData(
            "no two rows have the same label: give at least two rows of a label, or the task generation if "
            "a model should write such texts",
            field="data",
        )
    return [r for i, r in enumerate(rows) if i not in held], [r for i, r in enumerate(rows) if i in held]
