"""The job of the random walk: operations on a store and on the oracle, compared on the way."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import agree
import numpy as np
import play
from plain import Op, Plain, Refused, draw

from plot_store import Reader, Store

MOVES = {"publish", "finish", "extend", "append", "compact"}  # operations that create a version
HELD = 3  # readers that stay open


def walk(*, emit: Callable[[Any], None], folder: str, side: str, seed: int, count: int, thorough: int) -> Any:
    """Run `count` operations; after every `thorough`-th, compare everything. Emits
    {"found", "done": counts by kind}."""
    play.merge_early()
    rng, model = random.Random(seed), Plain()
    done: Counter[str] = Counter()
    held: list[tuple[Reader, int]] = []
    with Store.open(Path(folder) / "store", create=True) as store:
        for number in range(count):
            op = draw(rng, number)
            found, name = step(store, model, op, number, Path(side))
            done[name] += 1
            found = found or readers(rng, store, model, held)
            if not found and number % thorough == thorough - 1:
                play.play(store, Op("gc", arg=9), number, Path(side))
                model.apply(Op("gc", arg=9))
                found = agree.problems(store, model) + agree.strays(store, [r.version.id for r, _ in held])
            if found:
                return {
                    "found": [f"seed {seed}, operation {number}, {op}: {what}" for what in found],
                    "done": done,
                }
        for reader, _ in held:
            reader.close()
    return {"found": [], "done": done}


def step(store: Store, model: Plain, op: Op, number: int, side: Path) -> tuple[list[str], str]:
    """Run one operation on both; return (differences, kind of operation)."""
    before = model.current.get(op.ref)
    old = None if before is None else store.version(op.ref).id
    failed, changed = play.kind_of_failure(store, op, number, side)
    expected = ""
    try:
        model.apply(op, changed or bool(failed))
    except Refused as refusal:
        expected = refusal.args[0]
    if failed != expected:
        return [f"answered {failed or 'well'}, not {expected or 'well'}"], op.kind
    found = touched(store, model, op.ref)
    if not found and op.kind in MOVES and changed and old is not None:
        found = compared(store, model, old, op.ref, before)
    return found, f"{op.kind} refused" if failed else op.kind


def touched(store: Store, model: Plain, ref: str) -> list[str]:
    """Compare the names of all refs, and the current vectors of one."""
    ids = {name: version.id for name, version in store.refs().items()}
    if ids.keys() != model.current.keys():
        return [f"refs are {sorted(ids)}, not {sorted(model.current)}"]
    if ref not in model.current:
        return []
    with store.reader(ref) as reader:
        return agree.wrong_vectors(reader, model, model.current[ref])


def compared(store: Store, model: Plain, old: str, ref: str, before: int | None) -> list[str]:
    """Compare `diff` with dictionaries of each version's entries, inherited ones included."""
    assert before is not None
    after = model.current[ref]
    a, b = (
        {g: v for i in reversed(model.chain(at)) for g, v in model.versions[i].own.items()}
        for at in (before, after)
    )
    told_of = model.versions[before].own.keys() | model.versions[after].own.keys()
    found = []
    for order, told in store.diff(old, ref).orders.items():
        these = {g for g in told_of if len(g) == order}
        both = these & a.keys() & b.keys()
        same = sum(np.array_equal(a[g], b[g]) for g in both)
        right = (len(these - a.keys()), len(these - b.keys()), len(both) - same, same)
        if (told.added, told.removed, told.changed, told.same) != right:
            found.append(f"diff of order {order} says {told}, not {right}")
    return found


def readers(rng: random.Random, store: Store, model: Plain, held: list[tuple[Reader, int]]) -> list[str]:
    """Sometimes open or close a reader; an open one sees its version for ever."""
    if len(held) < HELD and model.current and rng.random() < 0.1:
        ref = rng.choice(sorted(model.current))
        held.append((store.reader(ref), model.current[ref]))
    if held and rng.random() < 0.1:
        reader, index = rng.choice(held)
        wrong = agree.wrong_vectors(reader, model, index)
        if wrong:
            return [f"a reader of version {index}: {what}" for what in wrong]
    if held and rng.random() < 0.05:
        held.pop(rng.randrange(len(held)))[0].close()
    return []
