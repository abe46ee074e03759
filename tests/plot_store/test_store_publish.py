"""Refs, versions and builds: publishing, racing, rolling back, deleting, extending, resuming."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import plotlab as lab
import pytest

from plot_store import ANY, Closed, Conflict, Damaged, InUse, Invalid, NotFound, ReadOnly, Schema, Store


def test_publish_compares_and_swaps(store: Store) -> None:
    first = store.writer("r", schema=lab.schema(), build="one")
    second = store.writer("r", schema=lab.schema(), build="two")
    v1 = first.publish()
    assert (v1.previous, v1.parent, v1.ref, v1.build) == (None, None, "r", "one")
    with pytest.raises(Conflict, match=v1.id):
        second.publish()
    with pytest.raises(Conflict):
        second.publish(expect=None)
    v2 = second.publish(expect=v1.id, meta={"k": [1, None, "x"]})
    assert (v2.previous, v2.meta) == (v1.id, {"k": [1, None, "x"]})
    assert store.version("r") == v2
    assert store.version(v1.id) == v1
    assert [v.id for v in store.history("r")] == [v2.id, v1.id]
    with pytest.raises(Closed):
        second.publish(expect=ANY)
    lab.check(store)


def test_tree(store: Store) -> None:
    root = lab.put(store, "r", lab.content(1))
    branch = lab.put(store, "r/a", lab.content(2))
    leaf = lab.put(store, "other-name", lab.content(3), parent="r/a")
    assert [v.id for v in store.chain("other-name")] == [leaf.id, branch.id, root.id]
    newer = lab.put(store, "r", lab.content(4))
    assert store.chain("r/a")[1] == root  # a branch stays on the version that it was built on
    assert lab.put(store, "r/a", lab.content(5)).parent == root.id
    assert lab.put(store, "r/a", lab.content(5), parent="r").parent == newer.id
    assert lab.put(store, "r/a", lab.content(5), parent=root.id).parent == root.id
    assert store.children("r") == ["other-name", "r/a"]
    assert store.children("r/a") == ["other-name"]
    assert set(store.refs()) == {"r", "r/a", "other-name"}
    with pytest.raises(InUse, match="other-name, r/a"):
        store.delete("r")
    store.delete("other-name")
    store.delete("r/a")
    store.delete("r")
    assert store.refs() == {}
    with pytest.raises(NotFound, match="there is no ref"):
        store.version("r")


def test_rollback(store: Store) -> None:
    v1, v2 = lab.put(store, "r", lab.content(1)), lab.put(store, "r", lab.content(2))
    stranger = lab.put(store, "s", lab.content(3))
    assert store.rollback("r", v1.id) == v1
    with store.reader("r") as reader:
        lab.same_as(reader, [lab.entries(lab.content(1))], lab.texts(1))
    v3 = lab.put(store, "r", lab.content(4))
    assert v3.previous == v1.id
    assert [v.id for v in store.history("r")] == [v3.id, v2.id, v1.id]
    assert store.rollback("r", v2.id) == v2
    with pytest.raises(Invalid, match="is of s"):
        store.rollback("r", stranger.id)
    with pytest.raises(NotFound):
        store.rollback("r", "v" + "0" * 32)
    with pytest.raises(Invalid, match="not a version id"):
        store.rollback("r", "s")


def test_a_reader_keeps_its_version(store: Store) -> None:
    lab.put(store, "r", lab.content(1))
    with store.reader("r") as old:
        lab.put(store, "r", lab.content(2))
        lab.same_as(old, [lab.entries(lab.content(1))], lab.texts(1))
        with store.reader("r") as new:
            lab.same_as(new, [lab.entries(lab.content(2))], lab.texts(1))
        store.delete("r")
        lab.same_as(old, [lab.entries(lab.content(1))], lab.texts(1))


def test_extend_adds_and_the_newest_wins(store: Store) -> None:
    known: lab.Entries = {}
    for round_number in range(7):  # more rounds than indexes are kept: some are merged on the way
        made = lab.content(round_number, (60, 10, 2))
        version = lab.put(
            store, "r", made, extend=True, expect=store.version("r").id if round_number else None
        )
        known.update(lab.entries(made))
        with store.reader("r") as reader:
            lab.same_as(reader, [known], lab.texts(round_number, (300, 1, 50)))
    assert sum(s.kind == "index" and s.order == 3 for s in version.segments) <= 4
    # Old content on top has the same names again.
    again = lab.put(store, "r", lab.content(2, (60, 10, 2)), extend=True)
    known.update(lab.entries(lab.content(2, (60, 10, 2))))
    assert len({s.name for s in again.segments}) == len(again.segments)
    with store.reader("r") as reader:
        lab.same_as(reader, [known], lab.texts(9, (300,)))
    lab.check(store)


def test_an_extending_build_never_drops_what_came_between(store: Store) -> None:
    lab.put(store, "r", lab.content(1))
    slow = store.writer("r", schema=lab.schema(), build="slow", extend=True)
    lab.put(store, "r", lab.content(2), extend=True)
    with pytest.raises(Conflict, match="moved"):
        slow.publish(expect=ANY)


def test_the_last_of_equal_ngrams_wins_across_segments(store: Store) -> None:
    ngram = np.array([[1, 2, 3]], np.uint32)
    with store.writer("r", schema=lab.schema("fp32"), build="b", segment_bytes=1 << 14) as writer:
        for value in (1, 2, 1, 3, 1):
            writer.add(3, np.repeat(ngram, 100, axis=0), np.full((100, 3, lab.DIM), value, np.float32))
        version = writer.publish()
    assert version.entries == {3: 1, 2: 0, 1: 0}
    with store.reader("r") as reader:
        assert (reader.get(3, ngram)[0] == 1).all()
    lab.check(store)


def test_resume_gives_the_same_segments(store: Store) -> None:
    made = lab.content(1, (1500, 100, 12))
    whole = lab.put(store, "whole", made)
    options = {"schema": lab.schema(), "build": "b", "segment_bytes": 1 << 15}
    for _ in range(40):
        with store.writer("pieces", **options) as writer:  # type: ignore[arg-type]
            for order, (ngrams, rows) in made.items():
                at = writer.resume_point(order)
                writer.add(order, ngrams[at : at + 400], rows[at : at + 400])
    with store.writer("pieces", **options) as writer:  # type: ignore[arg-type]
        assert writer.resume_point(3) > 0
        for order, (ngrams, rows) in made.items():
            at = writer.resume_point(order)
            writer.add(order, ngrams[at:], rows[at:])
        version = writer.publish()
    assert sorted(s.name for s in version.segments) == sorted(s.name for s in whole.segments)
    with store.writer("pieces", **options) as writer:  # type: ignore[arg-type]
        assert writer.resume_point(3) == 0  # publication has ended the build
        writer.abort()
    lab.check(store)


def test_a_build_id_means_one_build(store: Store) -> None:
    lab.put(store, "r", {})
    store.writer("r/a", schema=lab.schema(), build="b")
    for ref, schema, extend in (
        ("r/b", lab.schema(), False),
        ("r/a", lab.schema("fp16"), False),
        ("r/a", lab.schema(), True),
    ):
        with pytest.raises(Invalid, match="new build id"):
            store.writer(ref, schema=schema, build="b", extend=extend)


def test_a_writer_that_was_taken_over_can_do_nothing(store: Store) -> None:
    made = lab.content(1, (1500, 0, 0))
    old = store.writer("r", schema=lab.schema(), build="b", segment_bytes=1 << 15)
    new = store.writer("r", schema=lab.schema(), build="b", segment_bytes=1 << 15)
    with pytest.raises(Conflict, match="took over"):
        old.add(3, *made[3])
    with pytest.raises(Conflict, match="took over"):
        old.publish()
    with pytest.raises(Conflict, match="took over"):
        old.abort()
    new.add(3, *made[3])
    new.publish()
    with pytest.raises(Closed):  # the abort dropped what was being written, so publishing would lose rows
        old.publish(expect=ANY)
    lab.check(store)


def test_abort_removes_the_builds_files_and_no_others(store: Store) -> None:
    made = lab.content(1, (1500, 0, 0))
    lab.put(store, "r", made)
    files = sorted(p.name for p in (store.path / "segments").iterdir())
    other = lab.content(2, (1500, 0, 0))
    with store.writer("s", schema=lab.schema(), build="b", segment_bytes=1 << 15) as writer:
        writer.add(3, *made[3])  # the same content: the same files
        writer.add(3, *other[3])
        assert len(list((store.path / "segments").iterdir())) > len(files)
        writer.abort()
    assert sorted(p.name for p in (store.path / "segments").iterdir()) == files
    lab.check(store)


def test_what_a_writer_refuses(store: Store) -> None:
    made = lab.content(1)
    lab.put(store, "r", made)
    writer = store.writer("r", schema=lab.schema(), build="b")
    ngrams, rows = made[3]
    for order, bad_ngrams, bad_rows, message in (
        (4, ngrams, rows, "order 4"),
        (2, ngrams, rows, "shape"),
        (3, ngrams.astype(np.float32), rows, "integers"),
        (3, ngrams + np.uint32(lab.VOCAB), rows, "token id"),
        (3, ngrams.astype(np.int64) - 5, rows, "token id"),
        (3, ngrams, rows[:, :2], "representations"),
        (3, ngrams, rows[1:], "representations"),
        (3, ngrams, rows.astype(np.int8), "representations"),
        (3, ngrams, rows * np.float32(np.inf), "infinite"),
    ):
        with pytest.raises(Invalid, match=message):
            writer.add(order, bad_ngrams, bad_rows)
    with pytest.raises(Invalid, match="JSON"):
        writer.publish(meta={"x": object()})
    for schema, ref, parent, message in (
        (lab.schema(dim=7), "r/a", None, "dim"),
        (lab.schema(vocab=7), "r/a", None, "vocab"),
        (lab.schema(), "r", "r", "itself"),
        (lab.schema(), "R", None, "not a ref"),
        (lab.schema(), "a//b", None, "not a ref"),
        (lab.schema(), "v" + "0" * 32, None, "not a ref"),
    ):
        with pytest.raises(Invalid, match=message):
            store.writer(ref, schema=schema, build="c", parent=parent)
    with pytest.raises(NotFound, match="branch off"):
        store.writer("nobody/a", schema=lab.schema(), build="c")
    with pytest.raises(Invalid, match="n = 6"):
        Schema(n=6, dim=3, vocab=3)
    with pytest.raises(Invalid, match="dtype"):
        lab.schema("int4")
    with pytest.raises(Invalid, match="vocab"):
        lab.schema(vocab=(1 << 20) + 1)


def test_opening(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="create=True"):
        Store.open(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    with Store.open(tmp_path / "s", create=True) as one, Store.open(tmp_path / "s") as two:
        lab.put(one, "r", lab.content(1))
        reader = two.reader("r")
        one.close()
        assert two.version("r").ref == "r"
        with pytest.raises(Closed):
            one.refs()
    # a reader works after its store is closed
    lab.same_as(reader, [lab.entries(lab.content(1))], lab.texts(1))
    reader.close()
    with Store.open(tmp_path / "s", read_only=True) as watcher:
        with pytest.raises(ReadOnly):
            watcher.delete("r")
        with pytest.raises(InUse, match="read-only"):
            Store.open(tmp_path / "s")


def test_a_missing_segment_is_named(store: Store) -> None:
    version = lab.put(store, "r", lab.content(1))
    lab.piece(store, version.segments[0].name).file.unlink()
    with pytest.raises(Damaged, match=version.segments[0].name):
        store.reader("r")
