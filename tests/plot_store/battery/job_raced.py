"""The job that changes the store between the transactions of a collection.

A collection decides on a snapshot. Here, a version that it would remove comes to be needed just before its
first, second, … transaction, in each way in which that can happen.

Emits {"found": what is wrong, "tried": how often}.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import agree
import plain
import play
import plotlab as lab
import sabotage
from plain import Op

from plot_store import ANY, Collected, Store
from plot_store.catalogue.catalogue import Catalogue

Use = Callable[[Store, str, str, ExitStack], object]
RECORDS, FILES = "drop_records", "sweep"  # the functions whose transactions are counted
# The versions that go: their content, and that of the version on which they fall back.
GOING = {"first": ("r", 1, None), "second": ("r", 4, None), "branch": ("r/a", 2, 1)}


def raced(*, emit: Callable[[Any], None], folder: str, bug: str = "") -> Any:
    """Need each version that goes, in each way, before each transaction."""
    sabotage.plant(bug)
    play.step_by_step()
    found, tried = [], 0
    for stage, kind in [*((RECORDS, kind) for kind in USES if kind != "again"), (FILES, "again")]:
        for target in GOING:
            for turn in range(16):
                with lab.scratch() as path:
                    what = _race(path, stage, USES[kind], target, turn)
                if what is None:
                    break  # the collection has fewer transactions
                found += [f"{kind} {target} before {stage} {turn}: {w}" for w in what]
                tried += 1
    return {"found": found, "tried": tried}


def _race(path: Path, stage: str, use: Use, target: str, turn: int) -> list[str] | None:
    """What is wrong afterwards; None if the collection had ended before this transaction."""
    ref, seed, below = GOING[target]
    with Store.open(path / "store", create=True) as store, ExitStack() as kept:
        ids = {"first": _put(store, "r", 1)}
        ids["branch"] = _put(store, "r/a", 2)
        ids["second"] = _put(store, "r", 4)
        last = _put(store, "r", 3)
        _put(store, "r/a", 8, last)
        came: list[bool] = []  # when the moment has come: whether the version was still there

        def need() -> None:
            try:
                use(store, ref, ids[target], kept)
                came.append(True)
            except Collected:
                came.append(False)

        with before(stage, turn, need):
            play.play(store, Op("gc", arg=1), 0, path)
        if not came:
            return None
        found = [damage.what for damage in store.verify().damages]
        if came[0] and stage == RECORDS:
            chain = [plain.entries(of, s) for of, s in ((ref, seed), ("r", below)) if s is not None]
            with store.reader(ids[target]) as reader:
                for order in reader.version.schema.orders:
                    found += agree.wrong_entries(reader, chain, order)
        kept.close()
        play.play(store, Op("gc", arg=1), 1, path)
        return found + agree.strays(store) + [damage.what for damage in store.verify().damages]


def _put(store: Store, ref: str, seed: int, parent: str | None = None) -> str:
    with store.writer(ref, schema=plain.schema_of(ref), build=f"b{seed}", parent=parent) as writer:
        for order, (ngrams, rows) in plain.content(ref, seed).items():
            writer.add(order, ngrams, rows)
        return writer.publish(expect=ANY).id


def _begin(store: Store, ref: str, version: str, kept: ExitStack) -> None:
    """Open a build that falls back on the version, and publish it after the collection."""
    writer = store.writer(f"{ref}/new", schema=plain.schema_of(f"{ref}/new"), build="new", parent=version)
    kept.callback(writer.publish)


USES: dict[str, Use] = {
    "pin": lambda store, ref, version, kept: store.pin(version, "p"),
    "tag": lambda store, ref, version, kept: store.tag(ref, "t", version),
    "lease": lambda store, ref, version, kept: kept.enter_context(store.lease(version, 600.0)),
    "rollback": lambda store, ref, version, kept: store.rollback(ref, version),
    "reader": lambda store, ref, version, kept: kept.enter_context(store.reader(version)),
    "branch": lambda store, ref, version, kept: _put(store, f"{ref}/new", 5, version),
    "begin": _begin,
    "again": lambda store, ref, version, kept: [_put(store, of, seed) for of, seed, _ in GOING.values()],
}


@contextmanager
def before(stage: str, turn: int, act: Callable[[], None]) -> Iterator[None]:
    """Call `act` before the transaction of this number of a function."""
    real, count = Catalogue.write, 0

    def write(self: Catalogue, body: Callable[[Any], Any]) -> Any:
        nonlocal count
        if body.__qualname__.startswith(f"{stage}.<locals>."):
            count += 1
            if count == turn + 1:
                act()
        return real(self, body)

    Catalogue.write = write  # type: ignore[method-assign]
    try:
        yield
    finally:
        Catalogue.write = real  # type: ignore[method-assign]
