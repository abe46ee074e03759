"""SIGKILL at random and chosen moments: acknowledged operations are there, others
completely or not at all."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import plotlab as lab
from job_kill import operations
from nursery import Nurseries, Nursery
from plain import Op

COUNT = 16  # operations that each process tries
ROUNDS = 25  # of one store, before a new one replaces it
POINTS = {"write": "w", "sync": "f", "rename": "r", "unlink": "u", "create": "c", "sync or rename": "fr"}


@dataclass
class Past:
    """The history of one store so far."""

    ops: list[Op] = field(default_factory=list)
    changed: list[bool] = field(default_factory=list)
    born: bool = False
    deaths: Counter[str] = field(default_factory=Counter)
    whole: Counter[str] = field(default_factory=Counter)

    def took(self, op: Op, failed: str, changed: bool) -> None:
        if not failed:
            self.ops.append(op)
            self.changed.append(changed)


def one_round(nursery: Nursery, folder: Path, side: Path, seed: int, past: Past) -> list[str]:
    """Let a process work until it is killed, then check the store; return what is wrong."""
    rng = random.Random(seed)
    point = rng.choice([*POINTS, "any moment", "any moment", "any moment"])
    timed = point == "any moment"
    first = 1000 * seed
    outcome = nursery.run(
        "live",
        folder=folder,
        side=side,
        seed=seed,
        first=first,
        count=COUNT,
        kinds=POINTS.get(point, ""),
        at=0 if timed else rng.randint(1, 40),
        after=rng.random() < 0.5,
        kill_after=rng.uniform(0.0, 0.1) if timed else None,
    )
    if outcome.signal not in (0, signal.SIGKILL) or outcome.error:
        return [outcome.trouble]
    past.deaths[point if outcome.signal else "none"] += 1
    past.born |= bool(outcome.lines)
    todo = operations(seed, first, COUNT)
    told = outcome.lines[1:]
    for op, (failed, changed) in zip(todo, told, strict=False):
        past.took(op, failed, changed)
    return after(nursery, folder, side, past, todo[len(told) : len(told) + 1])


def after(nursery: Nursery, folder: Path, side: Path, past: Past, running: list[Op]) -> list[str]:
    """Check the store. `running`: the operation during which the process died, if any."""
    outcome = nursery.run(
        "judge",
        folder=folder / "store",
        side=side,
        ops=past.ops + running,
        changed=past.changed,
        done=len(past.ops) if past.born else -1,
        redo=False,
    )
    if not outcome.well:
        return [outcome.trouble]
    if outcome.result["next"]:
        past.took(running[0], "", True)
    part = [Op(*op) for op in outcome.result.get("part", [])]
    for op in part:
        past.took(op, "", True)
    past.whole["the new state" if outcome.result["next"] else "part of it" if part else "the old state"] += 1
    return [f"{what} (in {running})" for what in outcome.result["found"]]


def one_store(nursery: Nursery, side: Path, seed: int) -> tuple[Past, list[str]]:
    past = Past()
    with lab.scratch() as folder:
        for turn in range(ROUNDS):
            found = one_round(nursery, folder, side, seed * ROUNDS + turn, past)
            if found:
                return past, [f"store {seed}, round {turn}: {what}" for what in found]
    return past, []


def test_killed_at_any_time(
    nurseries: Nurseries, side: Path, counts: Callable[[int, int], int], tell: Callable[[str], None]
) -> None:
    wanted = counts(100, 2000)
    deaths: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    bad: list[str] = []
    seed = 0
    while deaths.total() - deaths["none"] < wanted and not bad:
        for past, found in nurseries.map(lambda n, s: one_store(n, side, s), range(seed, seed + 2)):
            deaths.update(past.deaths)
            whole.update(past.whole)
            bad += found
        seed += 2
    tell(
        f"kill -9: {deaths.total() - deaths['none']:,} processes killed ({dict(deaths)}), then found "
        f"{dict(whole)}: "
        f"{len(bad)} violations"
    )
    assert not bad, bad
    assert whole["the new state"] > 0
