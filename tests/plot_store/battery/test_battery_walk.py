"""Random operations against the oracle. test_store_stateful.py does fewer, and shrinks what it finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import play
import plotlab as lab
from nursery import Nurseries, Nursery

STEPS = 250  # of one store
THOROUGH = 50


def test_random_operations(
    nurseries: Nurseries, counts: Callable[[int, int], int], tell: Callable[[str], None]
) -> None:
    total = counts(1000, 100_000)

    def one(nursery: Nursery, seed: int) -> Any:
        with lab.scratch() as folder:
            outcome = nursery.run(
                "walk", folder=folder, side=side, seed=seed, count=STEPS, thorough=THOROUGH, patience=300
            )
        return outcome.result if outcome.well else {"found": [f"seed {seed}: {outcome.trouble}"], "done": {}}

    done: Counter[str] = Counter()
    found: list[str] = []
    with lab.scratch() as side:
        play.prepare(side)
        for answer in nurseries.map(one, range(max(1, total // STEPS))):
            done.update(answer["done"])
            found += answer["found"]
    tell(f"random operations: {done.total():,} {dict(done.most_common())}, {len(found)} violations")
    assert not found, "\n".join(found[:20])
    assert done["compact"] > 0
    assert sum(n for name, n in done.items() if name.endswith("refused")) > total // 20
