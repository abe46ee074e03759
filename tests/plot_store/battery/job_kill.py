"""The job of the kill test: random operations on a store until the process dies, each
acknowledged after it returns."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import play
from plain import Op, draw
from recorder import Recorder

from plot_store import Store


def operations(seed: int, first: int, count: int) -> list[Op]:
    """Operations first to first + count - 1 of an endless list. The first is a collection,
    which ends unfinished builds."""
    numbers = range(first, first + count)
    return [Op("gc", arg=2) if n == first else draw(random.Random(seed * 1_000_003 + n), n) for n in numbers]


def live(
    *,
    emit: Callable[[Any], None],
    folder: str,
    side: str,
    seed: int,
    first: int,
    count: int,
    kinds: str,
    at: int,
    after: bool,
) -> None:
    """Emits "open", then for each operation (kind of error or "", whether it changed anything).

    The process dies by SIGKILL before (or with `after`, after) the at-th file operation of these
    kinds; with at = 0 it lives on.
    """
    play.step_by_step()
    play.merge_early()
    recorder = Recorder(folder)
    if at:
        recorder.plan(at, at, "kill_after" if after else "kill_before", kinds=kinds)
    with Store.open(Path(folder) / "store", create=True) as store:
        emit("open")
        for i, op in enumerate(operations(seed, first, count)):
            emit(play.kind_of_failure(store, op, first + i, Path(side)))
