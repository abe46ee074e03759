"""Jobs of the fault tests: a call during which one file operation fails, and a disk that is really full."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import agree
import plain
import play
from job_crash import Ops, go_on, which
from plain import Op
from recorder import FOR_EVER, Recorder

from plot_store import PlotStoreError, Store, StoreFull, StoreIO

Emit = Callable[[Any], None]


def prepare(*, emit: Emit, folder: str, side: str, ops: Ops) -> list[bool]:
    """Create a store and run these operations on it."""
    with Store.open(Path(folder) / "store", create=True) as store:
        return [play.play(store, Op(*op), number, Path(side)) for number, op in enumerate(ops)]


def fault(
    *,
    emit: Emit,
    folder: str,
    side: str,
    ops: Ops,
    changed: list[bool],
    call: list[Any],
    at: int,
    sticky: bool,
    action: str,
    code: int,
    kinds: str,
    log: str | None = None,
) -> Any:
    """Run `call` on a store in which `ops` were done; its at-th operation of these kinds fails.

    With at = 0 none fails; with `sticky`, all later operations fail too. Afterwards the store must be
    as before or as after the call, and the call must work when it is repeated.

    Emits {"count": operations of the call, "failed": kind of the error, "found": what is wrong, "ops"
    and "changed": all operations done in the end, "reopened": whether the store worked only after it
    was opened anew}.
    """
    play.step_by_step()
    play.merge_early()
    follow = [*(Op(*op) for op in ops), Op(*call)]
    recorder = Recorder(folder, log)
    store = Store.open(Path(folder) / "store")
    recorder.plan(at, FOR_EVER if sticky else at, action, code, kinds)
    failed, done = play.kind_of_failure(store, follow[-1], len(ops), Path(side))
    count = recorder.count()
    recorder.plan(0, 0, "fail")
    # Also after a call that leaves its build unfinished, which hides the error of its thread.
    reopened = _gave_up(store)
    if reopened:
        store.close()
        store = Store.open(Path(folder) / "store")
    with store:
        ended = changed if failed else [*changed, done]
        now, found = which(store, follow, ended, len(ended))
        ended = [*ended, True][:now]
        if not found:
            found, follow, ended = go_on(store, follow, ended, now, Path(side))
    recorder.stop()
    return {
        "count": count,
        "failed": failed,
        "found": _unclean(failed) + found,
        "reopened": reopened,
        "ops": follow,
        "changed": ended,
    }


def _unclean(failed: str) -> list[str]:
    return [] if failed in ("", StoreIO.kind, StoreFull.kind) else [f"the error is {failed}"]


def _gave_up(store: Store) -> bool:
    """Whether LMDB refuses to write until the store is opened again."""
    try:
        store.untag("nobody", "none")
    except StoreIO:
        return True
    return False


def creation(*, emit: Emit, folder: str, at: int, sticky: bool, action: str, code: int, kinds: str) -> Any:
    """As `fault`, during the creation of a store."""
    recorder = Recorder(folder)
    recorder.plan(at, FOR_EVER if sticky else at, action, code, kinds)
    failed, count = "", 0
    try:
        Store.open(Path(folder) / "deep" / "store", create=True).close()
    except PlotStoreError as error:
        failed = error.kind
    count = recorder.count()
    recorder.stop()
    with Store.open(Path(folder) / "deep" / "store", create=True) as store:
        found, _, _ = go_on(store, [], [], 0, Path(folder))
    return {"count": count, "failed": failed, "found": _unclean(failed) + found, "reopened": False}


def full_disk(*, emit: Emit, folder: str, side: str, ops: Ops, size: int) -> Any:
    """Run the operations on a disk of `size` bytes, enlarged whenever it is full.
    Emits how often it was full."""
    disk, listed = Path(folder), [Op(*op) for op in ops]
    full, found, ended = 0, [], []

    def enlarge() -> None:
        nonlocal size, full
        size, full = size + size // 4 + 4096, full + 1
        subprocess.run(["mount", "-o", f"remount,size={size}", folder], check=True)

    store = None
    while store is None:
        try:
            store = Store.open(disk / "store", create=True)
        except StoreFull:
            enlarge()
    with store:
        while len(ended) < len(listed) and not found:
            now = len(ended)
            try:
                ended.append(play.play(store, listed[now], now, Path(side)))
            except StoreFull:
                now, found = which(store, listed, ended, len(ended))
                ended += [True] * (now - len(ended))
                enlarge()
            except PlotStoreError as error:
                found = [f"{listed[now]}: {error.kind}: {error}"]
        found = found or agree.problems(store, plain.after(listed, ended))
    return {"full": full, "found": found}
