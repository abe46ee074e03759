"""The demo's data sets: rows of a tenant's task, in splits that share no document."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hmi.core import Task
from hmi.demo.clean import fold

Row = dict[str, Any]
SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Amounts:
    """The amounts of text that the demo uses: rows for each tenant, bytes for each corpus."""

    train: int = 400
    dev: int = 100
    test: int = 300
    root_bytes: int = 1_200_000
    branch_bytes: int = 2_000_000
    seed: int = 0

    def rows(self, split: str) -> int:
        return {"train": self.train, "dev": self.dev, "test": self.test}[split]


@dataclass(frozen=True)
class TenantText:
    """A tenant's model: its task, its domain, and its rows by split."""

    tenant: str
    model: str
    domain: str
    """The last part of the domain's name: `root` for the root's own PLOT, else the name of a corpus."""
    task: Task
    about: str
    rows: Mapping[str, list[Row]]
    options: dict[str, Any] = field(default_factory=dict)
    form: dict[str, Any] | None = None
    """What the answers of a model that writes must keep, as in a request."""

    @property
    def id(self) -> str:
        return f"{self.tenant}.{self.model}"


@dataclass(frozen=True)
class Document:
    """A text with its class and its split."""

    label: str
    text: str
    split: str


def build_rows(
    candidates: Mapping[str, Iterable[Row]], amounts: Amounts, *, group: Callable[[Row], object]
) -> dict[str, list[Row]]:
    """Choose rows for each split, from the groups in turn, so that they are as balanced as the source allows.

    A row whose folded text was chosen before is left out. Test is chosen first, so no test text is in train
    or dev.
    """
    seen: set[str] = set()
    out: dict[str, list[Row]] = {}
    for split in reversed(SPLITS):
        rng = random.Random(f"{amounts.seed} {split}")
        groups: dict[object, list[Row]] = defaultdict(list)
        for row in candidates[split]:
            key = fold(row)
            if key not in seen:
                seen.add(key)
                groups[group(row)].append(row)
        out[split] = _take_turns(groups, amounts.rows(split), rng)
    return {split: out[split] for split in SPLITS}


def by_label(row: Row) -> object:
    return row["label"]


def _take_turns(groups: Mapping[object, list[Row]], count: int, rng: random.Random) -> list[Row]:
    queues = [rng.sample(rows, len(rows)) for _, rows in sorted(groups.items(), key=lambda kv: str(kv[0]))]
    chosen: list[Row] = []
    while len(chosen) < count and any(queues):
        for queue in queues:
            if queue and len(chosen) < count:
                chosen.append(queue.pop())
    rng.shuffle(chosen)
    return chosen
