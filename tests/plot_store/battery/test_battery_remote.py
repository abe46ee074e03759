"""SIGKILL during pushes and pulls, at a call or at any moment: both sides are whole, and it works again."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Callable
from typing import Any

import plotlab as lab
from nursery import Nurseries, Nursery

from tests.bucket import credentials

ROUNDS = 20  # of one remote and its two stores
CALLS = {"push": 30, "pull": 15}  # about as many as these make


def one_round(nursery: Nursery, rng: random.Random, given: dict[str, Any], seed: int) -> tuple[str, str]:
    """Let a process die while it pushes or pulls, then check. Returns where it died, and what is wrong."""
    what = rng.choice(["push", "pull"])
    timed = rng.random() < 0.4
    outcome = nursery.run(
        "moving",
        what=what,
        seed=seed,
        at=0 if timed else rng.randint(1, CALLS[what]),
        how=rng.choice(["kill", "killed"]),
        kill_after=rng.uniform(0.0, 1.0 if given["environment"] else 0.1) if timed else None,
        **given,
    )
    if outcome.signal not in (0, signal.SIGKILL) or outcome.error:
        return "", outcome.trouble
    where = f"{what}, {'any moment' if timed else 'a call'}" if outcome.signal else "none"
    if timed and not outcome.lines:
        where = "before it began"
    checked = nursery.run("moved", **given)
    return where, checked.trouble


def one_remote(
    nursery: Nursery, number: int, place: str, environment: dict[str, str]
) -> tuple[Counter[str], str]:
    deaths: Counter[str] = Counter()
    rng = random.Random(number)
    with lab.scratch() as folder:
        given = {
            "folder": folder,
            "url": f"{place}/{number}" if place else folder / "remote",
            "environment": environment,
        }
        begun = nursery.run("moving", what="push", seed=1, at=0, how="", **given)
        if not begun.well:
            return deaths, begun.trouble
        for turn in range(ROUNDS):
            where, found = one_round(nursery, rng, given, turn + 2)
            deaths[where] += 1
            if found:
                return deaths, f"remote {number}, round {turn} ({where}): {found}"
    return deaths, ""


def killed(nurseries: Nurseries, count: int, place: str, environment: dict[str, str]) -> Counter[str]:
    deaths: Counter[str] = Counter()
    bad = []
    for died, found in nurseries.map(lambda n, s: one_remote(n, s, place, environment), range(count)):
        deaths += died
        bad += [found] if found else []
    assert not bad, bad
    assert {"push, a call", "pull, a call"} <= deaths.keys()
    return deaths


def test_killed_with_a_folder(
    nurseries: Nurseries, counts: Callable[[int, int], int], tell: Callable[[str], None]
) -> None:
    deaths = killed(nurseries, counts(6, 100), "", {})
    tell(f"remote, kill -9: {dict(deaths)}: 0 violations")


def test_killed_with_a_server(
    nurseries: Nurseries, counts: Callable[[int, int], int], tell: Callable[[str], None], bucket: str
) -> None:
    deaths = killed(nurseries, counts(3, 30), "s3://plots/battery", credentials(bucket))
    tell(f"remote over S3, kill -9: {dict(deaths)}: 0 violations")
