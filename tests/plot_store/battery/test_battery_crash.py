"""Power cuts: the store is opened in every state in which a cut may leave the disk;
planted bugs must be found."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plotlab as lab
import pytest
import sabotage
from nursery import Nurseries, Nursery
from plain import SCRIPT, Op
from powercut import MARK, Disk, Tree, read_log, read_tree, write_tree

# the second: a version names files whose names are there
TWICE = [Op("publish", "r", 4), Op("publish", "r", 4)]
# Percent of the states that are judged.
RARE = {"named before its fsync": (TWICE, 40), "collection reversed": (SCRIPT, 6)}
RECIPES = ("none", "all", "random", "random", "random", "random")


@dataclass(frozen=True)
class State:
    """The disk after a cut: how many operations were acknowledged, and the files."""

    done: int
    tree: Tree


class Recording:
    """The log of the run of a script."""

    def __init__(self, nursery: Nursery, side: Path, bug: str = "", script: list[Op] = SCRIPT) -> None:
        self.script = script
        with lab.scratch() as folder:
            self.root = str(folder / "disk")
            Path(self.root).mkdir()
            outcome = nursery.run(
                "record", folder=self.root, log=folder / "log", side=side, ops=script, bug=bug
            )
            assert outcome.well, outcome
            self.changed: list[bool] = outcome.lines
            self.ops = list(read_log(folder / "log"))
            self._seen: set[bytes] = set()
            assert len(self.changed) == len(script)
            self._is_complete(read_tree(Path(self.root)))

    def _is_complete(self, there: Tree) -> None:
        """Assert that the recorder missed nothing: the files are what the log says."""
        disk = Disk(self.root)
        for op in self.ops:
            disk.apply(op)
        assert disk.cut(random.Random(0), "all") == there

    def states(self, seed: int, share: float) -> Iterator[State]:
        """The states that differ from earlier ones. `share`: the fraction of each cut's
        six states that is taken."""
        rng, disk, done = random.Random(seed), Disk(self.root), -1
        for op in self.ops:
            if op.kind == MARK:
                done = int(op.path)
            disk.apply(op)
            for mode in RECIPES:
                if rng.random() < share:
                    tree = disk.cut(rng, mode)
                    key = digest(done, tree)
                    if key not in self._seen:
                        self._seen.add(key)
                        yield State(done, tree)


def digest(done: int, tree: Tree) -> bytes:
    whole = hashlib.blake2b(str(done).encode())
    for path in sorted(tree):
        whole.update(path.encode() + b"\0" + (tree[path] or b""))
    return whole.digest()


def judge(nursery: Nursery, recording: Recording, side: Path, state: State) -> tuple[int, Any]:
    """(how many operations were acknowledged, the verdict on the store in this state)."""
    with lab.scratch() as folder:
        write_tree(state.tree, recording.root, folder)
        outcome = nursery.run(
            "judge",
            folder=folder / "deep" / "store",
            side=side,
            ops=recording.script,
            changed=recording.changed,
            done=state.done,
        )
    if not outcome.well:
        return state.done, {"found": [outcome.trouble]}
    return state.done, outcome.result


def test_no_power_cut_loses_anything(
    nurseries: Nurseries, side: Path, counts: Callable[[int, int], int], tell: Callable[[str], None]
) -> None:
    recording = nurseries.lend(lambda nursery: Recording(nursery, side))
    wanted, judged, seed = counts(1000, 10_000), 0, 0
    bad: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    while judged < wanted:
        share = min(1.0, (wanted - judged) / (4.0 * len(recording.ops)))
        for done, verdict in nurseries.map(
            lambda n, s: judge(n, recording, side, s), recording.states(seed, share)
        ):
            judged += 1
            bad.update(f"after {done}: {what}" for what in verdict["found"])
            ends["new" if verdict.get("next") else verdict.get("refused", "old")] += 1
        seed += 1
    kinds = sorted({op.kind for op in SCRIPT})
    tell(
        f"crash replay: {judged:,} states of {len(recording.ops)} operations over {', '.join(kinds)}: "
        f"{bad.total()} violations ({dict(ends)})"
    )
    assert not bad, bad.most_common(5)
    assert ends["old"] > wanted // 10
    # All of the roughly 80 states: the time between a change and its acknowledgement is short.
    assert ends["new"] > 30


@pytest.mark.parametrize("bug", list(sabotage.BUGS))
def test_a_planted_bug_is_caught(
    nurseries: Nurseries, side: Path, bug: str, counts: Callable[[int, int], int], tell: Callable[[str], None]
) -> None:
    script, share = RARE.get(bug, (SCRIPT, 2))
    recording = nurseries.lend(lambda nursery: Recording(nursery, side, bug, script))
    judged, caught = 0, 0
    example: list[str] = []
    for _, verdict in nurseries.map(
        lambda n, s: judge(n, recording, side, s),
        recording.states(1, min(100, counts(share, 10 * share)) / 100),
    ):
        judged += 1
        if verdict["found"]:
            caught += 1
            example = example or verdict["found"]
    tell(f"planted bug, {bug}: {caught} of {judged} states are bad, such as {example[:1]}")
    assert caught
