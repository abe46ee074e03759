"""Rows of `bench store`: calls that go through a catalogue of many refs and versions.

The versions are only records. All of them name the files of one small version, so that files take no time.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import numpy as np

from bench.cases.store import live
from bench.cases.store.data import VOCAB
from bench.harness.report import Figure, seconds
from hmi.api.process.local import LocalCalls
from hmi.config import Settings
from hmi.stores.layout import Layout
from plot_store import Schema, Store, VersionInfo
from plot_store.catalogue import version_tree
from plot_store.catalogue.catalogue import CatalogueTxn
from plot_store.catalogue.records import RefRecord, new_version
from plot_store.database.database import Database

ROOT = "root"
OLD = 20
"""The number of versions of each ref in the second of the two stores."""
META = {
    "root_version": "0" * 64,
    "lower": None,
    "alpha": 50.0,
    "report": {"tokens": 1_000_000, "seconds": 12.5, "stored": {"1": 30_000, "2": 20_000, "3": 100_000}},
}
IDLE_S = 1.0
LEAST = 200


def measure(folder: Path, keys: int, runs: int) -> Iterator[Figure]:
    """Yield the wall times of calls on two stores of a version for each 100 keys, at most 10,000.

    Each ref of the first store has one version. Each ref of the second has OLD versions.
    """
    versions = max(LEAST, min(10_000, keys // 100))
    for old in (1, OLD):
        yield from _of_a_store(folder / str(old), versions // old, old, runs)
        shutil.rmtree(folder / str(old))


def _of_a_store(folder: Path, refs: int, old: int, runs: int) -> Iterator[Figure]:
    kind = f"{refs}_refs_of_{old}"
    local = LocalCalls(Settings(data=folder))
    try:
        with Store.open(Layout(folder).plots) as store:
            fill(store, refs, old)
            number = count()
            calls: dict[str, Callable[[], object]] = {
                "refs": store.refs,
                "heads": store.heads,
                "metas": store.metas,
                "info": store.info,
                "history": lambda: store.history(_ref(0)),
                "children": lambda: store.children(ROOT),
                "snapshot": lambda: store.snapshot(folder / f"snapshot-{next(number)}"),
                "list_of_domains": lambda: local.request("GET", "/manage/domains"),
                "one_domain": lambda: local.request("GET", f"/manage/domains/{ROOT}.d0"),
            }
            for name, call in calls.items():
                yield _median(f"{name}_{kind}", runs, call)
            last = iter(range(refs - 1, 0, -1))
            yield from _deletions(store, f"delete_{kind}", runs, last)
            with live.publisher_of(store):
                yield from _deletions(store, f"delete_beside_publications_{kind}", max(1, runs // 2), last)
            heads = store.heads()
            look = _median(f"moved_{kind}", runs, lambda: store.moved(heads))
            yield look
            used = 1e3 * seconds(lambda: store.moved(heads, IDLE_S), time.process_time) - (look.value or 0)
            yield Figure(f"moved_idle_{kind}", used / IDLE_S, "ms/s", peer="CPU time while nothing happens")
    finally:
        local.close()


def _median(name: str, runs: int, call: Callable[[], object]) -> Figure:
    took = [seconds(call, time.perf_counter) for _ in range(runs)]
    return Figure(name, 1e3 * statistics.median(took), "ms", runs=runs)


def _deletions(store: Store, name: str, runs: int, numbers: Iterator[int]) -> Iterator[Figure]:
    """Yield the time of deletions, and the longest time for which one holds the write lock."""
    with lock_times() as held:
        yield _median(name, runs, lambda: store.delete(_ref(next(numbers))))
    yield Figure(f"{name}_lock_held", 1e3 * max(held), "ms", runs=len(held))


def fill(store: Store, refs: int, old: int) -> None:
    """Publish a root, and record `refs` branches with `old` versions each."""
    with store.writer(ROOT, schema=Schema(dim=16, vocab=VOCAB), build="root") as writer:
        for order in (1, 2, 3):
            ngrams = np.arange(1, order + 1, dtype=np.uint32)[None, :]
            writer.add(order, ngrams, np.ones((1, order * (4 - order), 16), np.float32))
        root = writer.publish(meta=META)

    def body(txn: CatalogueTxn) -> None:
        for number in range(refs):
            ids: list[str] = []
            for which in range(old):
                version = _version(root, _ref(number), ids[-1] if ids else None, which)
                version_tree.put_version(txn, version)
                ids.append(version.id)
            version_tree.put_ref(txn, _ref(number), RefRecord(ids[-1], tuple(reversed(ids))))

    store._env().catalogue.write(body)


def _ref(number: int) -> str:
    return f"{ROOT}/d{number}"


def _version(root: VersionInfo, ref: str, previous: str | None, which: int) -> VersionInfo:
    return new_version(
        ref=ref,
        parent=root.id,
        previous=previous,
        created=root.created,
        schema=root.schema,
        segments=root.segments,
        build=f"{ref.replace('/', '-')}-{which}",
        meta=META,
    )


@contextmanager
def lock_times() -> Iterator[list[float]]:
    """Yield a list that gets the seconds for which each write transaction of this process held the lock."""
    real, held = Database._run, list[float]()

    def timed(self: Database, body: Callable[..., object], *, write: bool) -> object:
        begun = time.perf_counter()
        try:
            return real(self, body, write=write)
        finally:
            if write:
                held.append(time.perf_counter() - begun)

    Database._run = timed  # type: ignore[method-assign, assignment]
    try:
        yield held
    finally:
        Database._run = real  # type: ignore[method-assign]
