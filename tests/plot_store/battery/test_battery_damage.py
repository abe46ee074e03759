"""Damaged segments, records, exports and data.mdb files: all damage is found, with no
wrong vector and no crash."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import plotlab as lab
import pytest
from grounds import Ground, prepared
from nursery import Nurseries, Nursery
from plain import Op

OPS = [
    Op("publish", "r", 4),
    Op("publish", "r/a", 2),
    Op("append", "r/a", 3),
    Op("publish", "q", 5),
    Op("publish", "r", 8),
    Op("tag", "r", 0, 1),
    Op("delete", "q"),
    Op("gc", arg=5),
    Op("publish", "d", 3),
    Op("append", "r/a", 6),
]
BATCH = 20


@pytest.fixture(scope="module")
def ground(nurseries: Nurseries) -> Iterator[Ground]:
    with prepared(nurseries, OPS) as made:
        yield made


def batches(
    nurseries: Nurseries, job: str, total: int, given: dict[str, Any], ground: Ground
) -> tuple[list[str], Counter]:
    """Try `total` damages, BATCH in each child, on copies; return (what is wrong, counts of the answers)."""

    def one(nursery: Nursery, first: int) -> Any:
        with lab.scratch() as copy:
            shutil.copytree(ground.folder, copy, dirs_exist_ok=True)
            place = {} if job == "archives" else {"folder": copy}
            outcome = nursery.run(job, first=first, count=min(BATCH, total - first), **place, **given)
        return (
            outcome.result
            if outcome.well
            else {"found": [f"batch {first}: {outcome.trouble}"], "answers": {}}
        )

    found: list[str] = []
    answers: Counter[str] = Counter()
    for answer in nurseries.map(one, range(0, total, BATCH)):
        found += answer["found"]
        answers.update(answer["answers"])
    return found, answers


def test_damaged_segments(
    nurseries: Nurseries, ground: Ground, counts: Callable[[int, int], int], tell: Callable[[str], None]
) -> None:
    total = counts(200, 2000)
    found, answers = batches(nurseries, "segments", total, {"ops": OPS, "changed": ground.changed}, ground)
    tell(
        f"damaged segments: {total:,}, all found by verify: answers {dict(answers)}, {len(found)} violations"
    )
    assert not found, "\n".join(found[:20])
    assert answers["look-up: damaged"] > 0
    assert answers["reader: damaged"] > 0
    assert answers["right"] > 0


def test_damaged_records(
    nurseries: Nurseries, ground: Ground, counts: Callable[[int, int], int], tell: Callable[[str], None]
) -> None:
    total = counts(100, 1000)
    found, answers = batches(nurseries, "records", total, {"ops": OPS, "changed": ground.changed}, ground)
    tell(f"damaged records: {total:,}, all found by verify: answers {dict(answers)}, {len(found)} violations")
    assert not found, "\n".join(found[:20])
    assert answers["right"] > 0


def test_damaged_exports(
    nurseries: Nurseries, ground: Ground, counts: Callable[[int, int], int], tell: Callable[[str], None]
) -> None:
    total = counts(100, 1000)
    found, answers = batches(nurseries, "archives", total, {"side": ground.side}, ground)
    tell(f"damaged exports: {total:,}, all refused: answers {dict(answers)}, {len(found)} violations")
    assert not found, "\n".join(found[:20])
    assert answers["damaged"] > total // 2


def test_damaged_catalogues(
    nurseries: Nurseries, ground: Ground, counts: Callable[[int, int], int], tell: Callable[[str], None]
) -> None:
    total = counts(40, 500)

    def one(nursery: Nursery, seed: int) -> tuple[str, list[str]]:
        outcome = nursery.run(
            "catalogue", folder=ground.folder, side=ground.side, ops=OPS, changed=ground.changed, seed=seed
        )
        if not outcome.well:
            return "crash", [f"seed {seed}, {outcome.lines[-1:]}: {outcome.trouble}"]
        return outcome.result["answer"], [
            f"seed {seed}, {outcome.result['how']}: {w}" for w in outcome.result["found"]
        ]

    answers: Counter[str] = Counter()
    found: list[str] = []
    for answer, wrong in nurseries.map(one, range(total)):
        answers[answer] += 1
        found += wrong
    tell(f"damaged data.mdb: {total}: {dict(answers)}, {len(found)} violations")
    assert not found, "\n".join(found[:20])
    assert answers["probe: damaged"] > total // 10
    assert answers["valid"] > 0
