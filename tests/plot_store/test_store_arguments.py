"""Any wrong argument raises Invalid, which names it, and never a bare error of Python or LMDB."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import plotlab as lab
import pytest

from plot_store import CountedNgrams, Invalid, Limits, MissSketch, NgramCounter, Schema, Store
from plot_store.care.scrub import probe, scrub

NAN = float("nan")
JUNK: list[Any] = [None, 5, 2.5, True, b"r", [], "", "A", "r@", "a\0b", "x" * 600, object()]


def deep(levels: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for _ in range(levels - 1):
        made = {"in": made}
    return made


def writer(store: Store, **changes: Any) -> None:
    store.writer(**{"ref": "w", "schema": lab.schema(), "build": "b"} | changes)


CALLS: dict[str, Callable[[Store, Any], Any]] = {
    "reader": lambda store, junk: store.reader(junk),
    "version": lambda store, junk: store.version(junk),
    "history": lambda store, junk: store.history(junk),
    "chain": lambda store, junk: store.chain(junk),
    "children": lambda store, junk: store.children(junk),
    "delete": lambda store, junk: store.delete(junk),
    "rollback": lambda store, junk: store.rollback("r", junk),
    "rollback of": lambda store, junk: store.rollback(junk, "r@good"),
    "tag": lambda store, junk: store.tag(junk, "t"),
    "untag": lambda store, junk: store.untag(junk, "t"),
    "pin": lambda store, junk: store.pin(junk, "me"),
    "unpin": lambda store, junk: store.unpin(junk, "me"),
    "lease": lambda store, junk: store.lease(junk, 5),
    "export": lambda store, junk: store.export(junk, store.path / "x.plot"),
    "append": lambda store, junk: store.append(junk, {}),
    "compact": lambda store, junk: store.compact(junk),
    "diff": lambda store, junk: store.diff("r", junk),
    "writer": lambda store, junk: writer(store, ref=junk),
    "scrub": lambda store, junk: scrub(store.path, ref="A" if junk is None else junk),
    "keep": lambda store, junk: store.gc(keep=[junk]),
}


@pytest.mark.parametrize("call", CALLS)
def test_what_is_no_name_of_a_version(store: Store, call: str) -> None:
    lab.put(store, "r", {})
    for junk in JUNK:
        with pytest.raises(Invalid):
            CALLS[call](store, junk)
    assert list(store.refs()) == ["r"]


WRONG: list[tuple[str, Callable[[Store], Any]]] = [
    ("max_bytes", lambda store: Limits(max_bytes=NAN)),  # type: ignore[arg-type]
    ("max_bytes", lambda store: Limits(max_bytes="5")),  # type: ignore[arg-type]
    ("max_bytes", lambda store: Limits(max_bytes=0)),
    ("min_free_bytes", lambda store: Limits(min_free_bytes=NAN)),  # type: ignore[arg-type]
    ("min_free_bytes", lambda store: Limits(min_free_bytes=None)),  # type: ignore[arg-type]
    ("meta", lambda store: writer(store, meta=deep(100_000))),
    ("meta", lambda store: writer(store, meta=deep(65))),
    ("meta", lambda store: writer(store, meta=[1])),
    ("meta", lambda store: writer(store, meta=[])),
    ("meta", lambda store: store.append("r", {}, meta={"x": object()})),
    ("schema", lambda store: writer(store, schema=None)),
    ("dtype", lambda store: Schema(dim=4, vocab=9, dtype=["int8"])),  # type: ignore[arg-type]
    ("segment_bytes", lambda store: writer(store, segment_bytes="64")),
    ("segment_bytes", lambda store: writer(store, segment_bytes=1e9)),
    ("build", lambda store: writer(store, build=None)),
    ("build", lambda store: store.abandon(7)),  # type: ignore[arg-type]
    ("entries", lambda store: store.append("r", None)),  # type: ignore[arg-type]
    ("entries", lambda store: store.append("r", {3: None})),  # type: ignore[dict-item]
    ("order", lambda store: store.append("r", {"3": ([], [])})),  # type: ignore[dict-item]
    ("ngrams", lambda store: store.append("r", {3: ([[1, 2, 3], [1]], [])})),  # type: ignore[dict-item]
    ("n-grams", lambda store: store.append("r", {3: (None, None)})),  # type: ignore[dict-item]
    ("rows", lambda store: store.append("r", {1: ([[1]], [[1.0], []])})),  # type: ignore[dict-item]
    ("ttl_s", lambda store: store.lease("r", "5")),  # type: ignore[arg-type]
    ("ttl_s", lambda store: store.lease("r", None)),  # type: ignore[arg-type]
    ("owner", lambda store: store.pin("r", None)),  # type: ignore[arg-type]
    ("owner", lambda store: store.lease("r", 5, owner=5)),  # type: ignore[arg-type]
    ("tag", lambda store: store.tag("r", None)),  # type: ignore[arg-type]
    ("max_segments", lambda store: store.compact("r", max_segments=None)),  # type: ignore[arg-type]
    ("target_bytes", lambda store: store.compact("r", target_bytes=NAN)),  # type: ignore[arg-type]
    ("samples", lambda store: store.diff("r", "r", samples="2")),  # type: ignore[arg-type]
    ("keep_versions", lambda store: store.gc(keep_versions=NAN)),  # type: ignore[arg-type]
    ("keep_days", lambda store: store.gc(keep_days="1")),  # type: ignore[arg-type]
    ("orphan_age_s", lambda store: store.gc(orphan_age_s=None)),  # type: ignore[arg-type]
    ("build_age_s", lambda store: store.gc(build_age_s=NAN)),
    ("keep holds", lambda store: store.gc(keep=None)),  # type: ignore[arg-type]
    ("backoff", lambda store: store.reader("r", backoff=None)),  # type: ignore[arg-type]
    ("bytes_per_second", lambda store: store.scrub(bytes_per_second=0)),
    ("bytes_per_second", lambda store: store.scrub(bytes_per_second=NAN)),
    ("tokens", lambda store: store.reader("r").lookup([1], None)),  # type: ignore[call-overload]
    ("memory_bytes", lambda store: NgramCounter(3, (3,), store.path.parent / "c", NAN)),  # type: ignore[arg-type]
    ("orders", lambda store: NgramCounter(3, ("3",), store.path.parent / "c")),  # type: ignore[arg-type]
    ("orders", lambda store: NgramCounter(3, None, store.path.parent / "c")),  # type: ignore[arg-type]
    ("n = '3'", lambda store: NgramCounter("3", (3,), store.path.parent / "c")),  # type: ignore[arg-type]
    ("tokens", lambda store: NgramCounter(3, (3,), store.path.parent / "c").add([1], [0, 1])),  # type: ignore[arg-type]
    ("capacity", lambda store: MissSketch(3, NAN)),  # type: ignore[arg-type]
    ("n = None", lambda store: MissSketch(None)),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("named", "call"), WRONG)
def test_the_refusal_names_the_argument(store: Store, named: str, call: Callable[[Store], Any]) -> None:
    before = lab.put(store, "r", {})
    with pytest.raises(Invalid, match=named):
        call(store)
    assert store.version("r") == before
    assert store._env().catalogue.read(lambda txn: txn.keys("build/") + txn.keys("lease/")) == []


@pytest.mark.parametrize("path", ["a\0b", None, 5, b"bytes"])
def test_what_is_no_path(store: Store, path: Any) -> None:
    lab.put(store, "r", {})
    for call in (
        lambda: Store.open(path),
        lambda: Store.open(path, create=True),
        lambda: store.export("r", path),
        lambda: store.import_archive(path),
        lambda: Store.archived(path),
        lambda: probe(path),
        lambda: scrub(path),
        lambda: NgramCounter(3, (3,), path),
        lambda: CountedNgrams.open(path),
    ):
        with pytest.raises(Invalid, match="not a path"):
            call()


def test_meta_may_be_as_deep_as_it_says(store: Store) -> None:
    meta = deep(64)
    version = lab.put(store, "r", lab.content(1), meta=meta)
    assert version.meta == store.version("r").meta == meta
    store.export("r", store.path.parent / "x.plot")
    assert Store.archived(store.path.parent / "x.plot") == [version]


def test_numbers_of_numpy_are_numbers(store: Store, tmp_path: Path) -> None:
    lab.put(store, "r", lab.content(1))
    with store.lease("r", np.float32(60)) as lease:
        assert lease.version == store.version("r").id
    assert store.compact("r", max_segments=np.int64(1)) is None
    assert Limits(max_bytes=np.int64(7)).max_bytes == 7
    assert store.gc(keep_versions=np.int64(1), keep_days=np.float64(0)).versions == ()
