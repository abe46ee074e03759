"""Runs the operations of `plain.Op` on a real store."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import plain
from plain import Op

from plot_store import ANY, PlotStoreError, Store
from plot_store.catalogue import changes
from plot_store.writing import writer

SEGMENT_BYTES = 1 << 14  # a build of the battery has several segments
AT_ONCE = -60.0  # files created just now count as old


def step_by_step() -> None:
    """From now on, each step of a collection is a transaction of its own in this process."""
    changes.HOLD_S = 0.0  # type: ignore[misc]


def merge_early() -> None:
    """From now on in this process, an extending build merges once there are two indexes of an order."""
    writer.MAX_RUNS = 2  # type: ignore[misc]


def play(store: Store, op: Op, number: int, side: Path) -> bool:
    """Run an operation and return whether it changed anything. `side` holds the archives.
    Raises the store's errors."""
    return bool(globals()[f"_{op.kind}"](store, op, number, side))


def kind_of_failure(store: Store, op: Op, number: int, side: Path) -> tuple[str, bool]:
    """("" or the kind of the store's error, whether anything changed)."""
    try:
        return "", play(store, op, number, side)
    except PlotStoreError as error:
        return error.kind, False


def prepare(side: Path, seeds: range = range(1, 4)) -> None:
    """Write the archives for operations of kind `import`."""
    for seed in seeds:
        with Store.open(side / f"from{seed}", create=True) as store:
            play(store, Op("publish", f"i{seed}", seed), 0, side)
            play(store, Op("publish", f"i{seed}/a", seed), 1, side)
            store.export(f"i{seed}/a", side / f"i{seed}.plot")


def _build(store: Store, op: Op, build: str, extend: bool = False, seal: bool = False) -> bool:
    writer = store.writer(
        op.ref, schema=plain.schema_of(op.ref), build=build, extend=extend, segment_bytes=SEGMENT_BYTES
    )
    with writer:
        for order, (ngrams, rows) in plain.content(op.ref, op.seed).items():
            at = writer.resume_point(order)
            writer.add(order, ngrams[at:], rows[at:])
        if seal:
            writer.seal()
        writer.publish(expect=ANY)
    return True


def _publish(store: Store, op: Op, number: int, side: Path) -> bool:
    return _build(store, op, f"b{number}")


def _sealed(store: Store, op: Op, number: int, side: Path) -> bool:
    return _build(store, op, f"b{number}", seal=True)


def _extend(store: Store, op: Op, number: int, side: Path) -> bool:
    return _build(store, op, f"b{number}", extend=True)


def build_of(op: Op) -> str:
    """The id of a build that may be resumed: equal for equal content."""
    return f"u-{op.ref.replace('/', '.')}-{op.seed}"


def _begin(store: Store, op: Op, number: int, side: Path) -> bool:
    with store.writer(
        op.ref, schema=plain.schema_of(op.ref), build=build_of(op), segment_bytes=SEGMENT_BYTES
    ) as writer:
        for order, (ngrams, rows) in plain.content(op.ref, op.seed).items():
            at = writer.resume_point(order)
            writer.add(order, ngrams[at:], rows[at:])
    return True


def _finish(store: Store, op: Op, number: int, side: Path) -> bool:
    return _build(store, op, build_of(op))


def _append(store: Store, op: Op, number: int, side: Path) -> bool:
    store.append(op.ref, plain.content(op.ref, op.seed), build=f"b{number}")
    return True


def _compact(store: Store, op: Op, number: int, side: Path) -> bool:
    return store.compact(op.ref, max_segments=1, target_bytes=1 << 20) is not None


def _rollback(store: Store, op: Op, number: int, side: Path) -> bool:
    history = store.history(op.ref)
    store.rollback(op.ref, history[op.arg % len(history)].id)
    return True


def _delete(store: Store, op: Op, number: int, side: Path) -> bool:
    store.delete(op.ref)
    return True


def _gc(store: Store, op: Op, number: int, side: Path) -> bool:
    store.gc(keep_versions=op.arg, orphan_age_s=AT_ONCE, build_age_s=AT_ONCE)
    return True


def _tag(store: Store, op: Op, number: int, side: Path) -> bool:
    store.tag(op.ref, f"t{op.arg}")
    return True


def _untag(store: Store, op: Op, number: int, side: Path) -> bool:
    return store.untag(op.ref, f"t{op.arg}")


def _pin(store: Store, op: Op, number: int, side: Path) -> bool:
    store.pin(op.ref, f"p{op.arg}")
    return True


def _unpin(store: Store, op: Op, number: int, side: Path) -> bool:
    return store.unpin(op.ref, f"p{op.arg}")


def _import(store: Store, op: Op, number: int, side: Path) -> bool:
    store.import_archive(side / f"i{op.seed}.plot")
    return True


def _export(store: Store, op: Op, number: int, side: Path) -> bool:
    store.export(op.ref, store.path.parent / "out.plot")
    return True


def some_text(seed: int, length: int = 14) -> tuple[np.ndarray, np.ndarray]:
    """Two texts, (tokens int32 [total], offsets int64 [3])."""
    tokens = np.random.default_rng(seed).integers(0, plain.VOCAB, length).astype(np.int32)
    return tokens, np.array([0, length // 3, length], np.int64)
