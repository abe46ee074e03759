"""Jobs of the power cut tests: to record a run, and to judge the store found after a cut."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import agree
import plain
import play
import sabotage
from plain import Op, Plain
from recorder import Recorder

from plot_store import PlotStoreError, Store

Emit = Callable[[Any], None]
Ops = list[list[Any]]


def record(*, emit: Emit, folder: str, log: str, side: str, ops: Ops, bug: str = "") -> None:
    """Run the operations with the recorder on, and a mark after each. Emits for each
    whether it changed anything."""
    sabotage.plant(bug)
    play.step_by_step()
    play.merge_early()
    recorder = Recorder(folder, log)
    with Store.open(Path(folder) / "deep" / "store", create=True) as store:
        recorder.mark("0")
        for number, op in enumerate(ops):
            emit(play.play(store, Op(*op), number, Path(side)))
            recorder.mark(str(number + 1))
    recorder.stop()


def judge(
    *, emit: Emit, folder: str, side: str, ops: Ops, changed: list[bool], done: int, redo: bool = True
) -> Any:
    """The violations in a store: `done` operations were acknowledged, the next may have happened.

    With done = -1, not even the creation of the store was acknowledged. Emits {"found": […], "next":
    whether the next operation has happened}.
    """
    listed = [Op(*op) for op in ops]
    path = Path(folder)
    if done < 0:
        return _unborn(path, listed, Path(side), redo)
    try:
        with Store.open(path) as store:
            now, found = which(store, listed, changed, done)
            part = [] if now > done or found else partly(store, listed, changed, done)
            if not found and redo:
                found = _exported(path, listed[:done], changed)
                found += go_on(store, listed, changed, now, Path(side))[0]
            return {"found": found, "next": now > done, "part": part}
    except PlotStoreError as error:
        return {"found": [f"{error.kind}: {error}"], "next": False}


def _unborn(path: Path, ops: list[Op], side: Path, redo: bool) -> Any:
    """A store whose creation had not returned may be refused; otherwise it is empty. It
    must not crash the process."""
    try:
        with Store.open(path, create=True) as store:
            found = agree.problems(store, Plain())
            if not found and redo:
                found = go_on(store, ops, [], 0, side)[0]
            return {"found": found, "next": False}
    except PlotStoreError as error:
        return {"found": [], "next": False, "refused": error.kind}


def which(store: Store, ops: list[Op], changed: list[bool], done: int) -> tuple[int, list[str]]:
    """(how many operations have happened, what is wrong). A collection may have happened in part."""
    found = agree.problems(store, plain.after(ops[:done], changed))
    if not found or done == len(ops):
        return done, found
    later = agree.problems(store, plain.after(ops[: done + 1], changed))
    if not later:
        return done + 1, []
    part = partly(store, ops, changed, done)
    between = agree.problems(store, plain.after([*ops[:done], *part], changed)) if part else ["no collection"]
    return done, [f"neither {found} nor {later} nor {between}"] if between else []


def partly(store: Store, ops: list[Op], changed: list[bool], done: int) -> list[Op]:
    """What the next operation has done so far, if it is a collection: it shortens one ref after the other."""
    if done == len(ops) or ops[done].kind != "gc":
        return []
    model = plain.after(ops[:done], changed)
    lengths = {ref: len(store.history(ref)) for ref in store.refs()}
    return [
        Op("shrink", ref, ops[done].arg, lengths[ref])
        for ref, kept in model.kept.items()
        if ref in lengths and lengths[ref] < len(kept)
    ]


def _exported(path: Path, ops: list[Op], changed: list[bool]) -> list[str]:
    """Check that an acknowledged export is there, complete, and imports as what was exported."""
    last = max((i for i, op in enumerate(ops) if op.kind == "export"), default=None)
    if last is None:
        return []
    ref, model = ops[last].ref, plain.after(ops[:last], changed)
    with Store.open(path.parent / "imported", create=True) as store:
        version = store.import_archive(path.parent / "out.plot")
        with store.reader(ref) as reader:
            wrong = agree.wrong_vectors(reader, model, model.current[ref])
        return [f"export: {what}" for what in wrong] + (
            [] if version.ref == ref else [f"export is of {version.ref}"]
        )


def go_on(
    store: Store, ops: list[Op], changed: list[bool], now: int, side: Path
) -> tuple[list[str], list[Op], list[bool]]:
    """Repeat what was cut off, then publish and collect: each must work, and no stray file may be left.

    Returns (what is wrong, all operations done by now, whether each changed anything).
    """
    done, ended = ops[:now], changed[:now]
    for op in [*ops[now : now + 1], Op("publish", "top", 7), Op("gc", arg=99)]:
        try:
            ended.append(play.play(store, op, len(done), side))
        except PlotStoreError as error:
            return [f"{op} on top: {error.kind}: {error}"], done, ended
        done.append(op)
    found = agree.problems(store, plain.after(done, ended), thorough=False) + agree.strays(store)
    return [f"on top: {what}" for what in found], done, ended
