"""Many processes on one store: each read is of one published version, and killed readers leave no trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import plotlab as lab
from nursery import Nurseries, Nursery

READERS = 4
KILLS = 25  # readers of one store


def test_every_read_is_of_one_published_version(
    nurseries: Nurseries, counts: Callable[[int, int], int], tell: Callable[[str], None]
) -> None:
    total = counts(40_000, 1_000_000)
    with lab.scratch() as folder:
        outcome = nurseries.run("history", folder=folder, readers=READERS, reads=total, patience=3000)
    answer = outcome.result
    tell(
        f"history: {total:,} reads by {READERS} processes of {answer['versions']:,} versions, beside a "
        "builder and "
        f"the collector: {len(answer['failed'])} failed, {len(answer['found'])} left wrong"
    )
    assert not answer["failed"], (answer["failed"], answer["said"])
    assert not answer["found"], answer["found"]
    assert answer["versions"] > 10
    assert answer["seen"] > 2 * READERS


def test_readers_killed_while_mapped(
    nurseries: Nurseries, counts: Callable[[int, int], int], tell: Callable[[str], None]
) -> None:
    total = counts(50, 500)

    def one(nursery: Nursery, seed: int) -> Any:
        with lab.scratch() as folder:
            return nursery.run("victims", folder=folder, rounds=KILLS, seed=seed, patience=300).result

    answers = list(nurseries.map(one, range(total // KILLS)))
    failed, found = sum(a["failed"] for a in answers), [what for a in answers for what in a["found"]]
    tell(
        f"readers killed while mapped: {total}, beside {sum(a['versions'] for a in answers):,} "
        "publications and the "
        f"collector: {failed} failed, {len(found)} left wrong"
    )
    assert not failed, "see stderr"
    assert not found, found
