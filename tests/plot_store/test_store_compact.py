"""Appending, compacting and comparing versions, against a plain dictionary."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import plotlab as lab
import pytest

from plot_store import Conflict, Damaged, Invalid, NotFound, Store, StoreFull, StoreIO, VersionInfo
from plot_store.writing import writer

SMALL = 1 << 15  # the tests' target_bytes: most segments are below half of it


@pytest.fixture(autouse=True)
def unmerged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends here merge nothing, so that there is something to compact."""
    monkeypatch.setattr(writer, "MAX_RUNS", 1 << 30)


def grow(store: Store, rounds: int, ref: str = "r", counts: tuple[int, ...] = (60, 10, 2)) -> lab.Entries:
    """Publish a ref and append to it `appends` times; return its entries."""
    known = lab.entries(lab.content(0, counts))
    lab.put(store, ref, lab.content(0, counts), meta={"alpha": 7})
    for seed in range(1, rounds + 1):
        made = lab.content(seed, counts)
        store.append(ref, made)
        known.update(lab.entries(made))
    return known


def segments(version: VersionInfo, order: int, kind: str = "rows") -> list[str]:
    return [s.name for s in version.segments if s.order == order and s.kind == kind]


def leftovers(store: Store) -> tuple[list[str], set[str]]:
    """Builds in progress, and files that no version names."""
    txn_builds = store._env().catalogue.read(lambda txn: txn.keys("build/"))
    named = {
        s.name for v in store.gc(dry_run=True, keep_versions=1000).kept for s in store.version(v).segments
    }
    return txn_builds, {p.name for p in (store.path / "segments").iterdir()} - lab.files(store, named)


def test_append_costs_a_segment_and_keeps_the_rest(store: Store) -> None:
    known = grow(store, 0)
    before = store.version("r")
    made = lab.content(1, (50, 0, 3))
    version = store.append("r", made, build="mine", meta={"why": "more"})
    known.update(lab.entries(made))
    assert (version.build, version.previous, version.parent) == ("mine", before.id, before.parent)
    assert version.meta == {"alpha": 7, "why": "more"}
    assert {s.name for s in before.segments} < {s.name for s in version.segments}
    assert [len(segments(version, order)) for order in (3, 2, 1)] == [2, 1, 2]
    with store.reader("r") as reader:
        lab.same_as(reader, [known], lab.texts(1, (300, 1, 50)))
    lab.check(store)


def test_an_append_that_fails_leaves_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    grow(store, 1)
    made = lab.content(2)
    with pytest.raises(NotFound):
        store.append("nobody", made)
    with pytest.raises(Invalid, match="infinite"):
        store.append("r", {3: made[3], 2: (made[2][0], made[2][1] * np.float32(np.inf))})
    real, left = os.fsync, [1]

    def failing(fd: int) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise OSError(5, "Input/output error")
        real(fd)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(StoreIO):
        store.append("r", made)
    monkeypatch.undo()
    assert leftovers(store) == ([], set())
    lab.check(store)


def test_an_append_beside_a_publication_is_a_conflict(store: Store) -> None:
    grow(store, 0)
    slow = store.writer("r", schema=lab.schema(), build="slow", extend=True)
    slow.add(3, *lab.content(1)[3])
    store.append("r", lab.content(2))
    with pytest.raises(Conflict, match="moved"):
        slow.publish()


@pytest.mark.parametrize("rounds", [1, 3, 9, 21])
def test_compaction_keeps_the_content_to_the_bit(store: Store, rounds: int) -> None:
    known = grow(store, rounds)
    lab.put(store, "r/a", lab.content(50))
    old = store.version("r")
    batch = lab.texts(rounds, (400, 1, 2, 50))
    with store.reader("r") as reader:
        before, hits = lab.look(reader, batch)
        lab.same_as(reader, [known], batch)
        steps: list[tuple[int, int]] = []
        new = store.compact(
            "r", max_segments=1, target_bytes=SMALL, progress=lambda *step: steps.append(step)
        )
        assert new is not None
        lab.same_as(reader, [known], batch)  # the open reader still answers
    assert new == store.version("r")
    assert (new.previous, new.parent, new.meta) == (old.id, old.parent, {"alpha": 7, "compacted": old.id})
    with store.reader("r") as reader:
        after, hits_after = lab.look(reader, batch)
        lab.same_as(reader, [known], batch)
    assert np.array_equal(before, after)
    assert np.array_equal(hits.order, hits_after.order)
    for order in (3, 2, 1):
        assert len(segments(new, order, "index")) == 1
        expected = sum(len(g) == order for g in known)
        assert new.entries[order] == expected
        assert sum(s.count for s in new.segments if s.kind == "rows" and s.order == order) == expected
    assert sum(s.bytes for s in new.segments) < sum(s.bytes for s in old.segments)
    assert [done for done, _ in steps] == sorted({done for done, _ in steps})
    assert steps[-1][0] <= steps[-1][1] == sum(s.bytes for s in old.segments if s.kind == "rows")
    assert store.diff(old.id, new.id).equal
    assert store.compact("r", max_segments=1, target_bytes=SMALL) is None  # nothing is left to merge
    assert store.children("r") == ["r/a"]
    assert leftovers(store) == ([], set())
    lab.check(store)
    again = store.append("r", lab.content(99, (60, 10, 2)))
    assert again.meta == {"alpha": 7}
    known.update(lab.entries(lab.content(99, (60, 10, 2))))
    with store.reader("r") as reader:
        lab.same_as(reader, [known], batch)


def test_large_segments_stay_what_they_are(store: Store) -> None:
    base = lab.content(0, (1500, 0, 0))
    lab.put(store, "r", base, segment_bytes=SMALL)
    known = lab.entries(base)
    large = [s.name for s in store.version("r").segments if s.kind == "rows" and s.bytes >= SMALL // 2]
    for seed in range(1, 13):
        made = lab.content(seed, (20, 0, 0))
        store.append("r", made)
        known.update(lab.entries(made))
    assert store.compact("r", max_segments=13, target_bytes=SMALL) is None
    new = store.compact("r", max_segments=3, target_bytes=SMALL)
    assert new is not None
    assert len(large) >= 4
    assert set(large) <= set(segments(new, 3))
    assert len(segments(new, 3)) <= len(large) + 2
    with store.reader("r") as reader:
        lab.same_as(reader, [known], lab.texts(3, (500,)))
    lab.check(store)


def test_the_same_content_appended_twice(store: Store) -> None:
    """One file is then under two indexes, and its newest place counts."""
    known = grow(store, 2)
    for seed in (1, 2, 1):
        store.append("r", lab.content(seed, (60, 10, 2)))
        known.update(lab.entries(lab.content(seed, (60, 10, 2))))
    new = store.compact("r", max_segments=1, target_bytes=SMALL)
    assert new is not None
    assert new.entries[3] == sum(len(g) == 3 for g in known)
    with store.reader("r") as reader:
        lab.same_as(reader, [known], lab.texts(4, (500,)))
    lab.check(store)


def test_a_lost_race_leaves_nothing(store: Store) -> None:
    grow(store, 5)

    def publish(done: int, total: int) -> None:
        if not store.version("r").meta.get("won"):
            store.append("r", lab.content(77), meta={"won": True})

    with pytest.raises(Conflict, match="moved"):
        store.compact("r", max_segments=1, target_bytes=SMALL, progress=publish)
    assert store.version("r").meta["won"] is True
    assert leftovers(store) == ([], set())
    assert store.compact("r", max_segments=1, target_bytes=SMALL) is not None
    lab.check(store)


def test_a_compaction_that_is_stopped_or_fails_leaves_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = grow(store, 5)

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.compact("r", max_segments=1, target_bytes=SMALL, progress=stop)
    assert leftovers(store) == ([], set())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(StoreFull):
            store.compact("r", max_segments=1, target_bytes=SMALL)
    assert leftovers(store) == ([], set())
    with store.reader("r") as reader:
        lab.same_as(reader, [known], lab.texts(4, (100,)))
    for name, value in (("max_segments", 0), ("target_bytes", 100)):
        with pytest.raises(Invalid, match=name):
            store.compact("r", **{name: value})
    lab.check(store)


DIES = """
import os, sys
from plot_store import Store
from plot_store.writing import promote
from plot_store.writing.segment_writer import SegmentWriter
moment, name, register = sys.argv[2], promote.promote, SegmentWriter.register

def dying(environment, txn, drafts):
    if moment != "written":
        name(environment, txn, drafts)
    if moment != "registered":
        os._exit(9)

def registering(*given):
    register(*given)
    os._exit(9)

promote.promote, SegmentWriter.register = dying, registering
with Store.open(sys.argv[1]) as store:
    store.compact("r", max_segments=1, target_bytes=1 << 16)
"""
# The kind of file that only gc removes, if any.
MOMENTS = {"written": ".tmp", "named": ".rows", "registered": None}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_compaction_that_died_is_begun_again(store: Store, moment: str) -> None:
    known = grow(store, 3, counts=(300, 60, 4))
    assert lab.child(DIES, store.path, moment).returncode == 9
    assert leftovers(store)[0] == [f"compact-{store.version('r').id}"]
    assert store.gc(keep_versions=1).builds == ()
    new = store.compact("r", max_segments=1, target_bytes=1 << 16)
    assert new is not None
    assert leftovers(store)[0] == []
    # A named compaction is made anew, under its name.
    assert len(store.gc(orphan_age_s=-60).orphans) == (moment == "written")
    with store.reader("r") as reader:
        lab.same_as(reader, [known], lab.texts(4, (300,)))
    lab.check(store)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_compaction_that_died_and_was_overtaken_goes(store: Store, moment: str) -> None:
    """The next compaction removes its build and registered segments; gc removes a
    file that was not registered."""
    grow(store, 3, counts=(300, 60, 4))
    assert lab.child(DIES, store.path, moment).returncode == 9
    store.append("r", lab.content(50))
    assert len(leftovers(store)[0]) == 1
    assert store.compact("r", max_segments=1, target_bytes=1 << 16) is not None
    builds, files = leftovers(store)
    assert builds == []
    assert [Path(name).suffix for name in files] == [kind for kind in [MOMENTS[moment]] if kind]
    assert set(store.gc(orphan_age_s=-60).orphans) == files
    lab.check(store)


def test_damage_is_not_copied(store: Store) -> None:
    grow(store, 4)
    piece = lab.piece(store, segments(store.version("r"), 3)[1])
    piece.flip(4096 + 60, 2)  # in the vectors of the first row
    with pytest.raises(Damaged, match=piece.name):
        store.compact("r", max_segments=1, target_bytes=SMALL)
    assert leftovers(store)[0] == []


def test_rows_of_format_1_are_compacted_with_checks(store: Store) -> None:
    old = store.import_archive(Path(__file__).parent / "formats" / "format-1.plot")
    store.append(old.ref, lab.content(1, (20, 5, 1), dim=old.schema.dim, vocab=old.schema.vocab))
    batch = lab.texts(1, (300,), vocab=old.schema.vocab)
    with store.reader(old.ref) as reader:
        before = lab.look(reader, batch)[0]
    new = store.compact(old.ref, max_segments=1, target_bytes=SMALL)
    assert new is not None
    with store.reader(old.ref) as reader:
        assert np.array_equal(lab.look(reader, batch)[0], before)
    piece = lab.piece(store, segments(new, 3)[0])
    piece.flip(4096 + 40)
    with store.reader(old.ref) as reader, pytest.raises(Damaged, match=piece.name):
        reader.get(3, reader.ngrams(3))


def plain_diff(a: lab.Entries, b: lab.Entries, order: int) -> dict[str, set[tuple[int, ...]]]:
    one = {g: v for g, v in a.items() if len(g) == order}
    two = {g: v for g, v in b.items() if len(g) == order}
    changed = {g for g in one.keys() & two.keys() if not np.array_equal(one[g], two[g])}
    return {"added": two.keys() - one.keys(), "removed": one.keys() - two.keys(), "changed": changed}


@pytest.mark.parametrize("dtypes", [("int8", "int8"), ("fp32", "fp32"), ("fp16", "fp32")])
def test_diff_says_what_a_dictionary_says(store: Store, dtypes: tuple[str, str]) -> None:
    one, two = lab.content(1), lab.content(2)
    shared = lab.content(1, (100, 20, 5))
    for order in two:  # a part of the first content, unchanged, on top of the second
        two[order] = tuple(np.concatenate([x, y[:5]]) for x, y in zip(two[order], shared[order], strict=True))  # type: ignore[assignment]
    a = lab.put(store, "r", one, dtype=dtypes[0])
    b = lab.put(store, "s", two, dtype=dtypes[1])
    entries = lab.entries(one, dtypes[0]), lab.entries(two, dtypes[1])
    report = store.diff("r", b.id, samples=1000)
    assert (report.a, report.b, report.equal) == (a.id, b.id, False)
    for order, found in report.orders.items():
        expected = plain_diff(*entries, order)
        assert {kind: {tuple(map(int, g)) for g in found.samples[kind]} for kind in expected} == expected
        assert {kind: getattr(found, kind) for kind in expected} == {k: len(v) for k, v in expected.items()}
        assert found.same == sum(len(g) == order for g in entries[0]) - found.removed - found.changed
    assert store.diff("r", "s", samples=2).orders[3].samples["added"].shape == (2, 3)
    assert store.diff("r", a.id).equal


@pytest.mark.filterwarnings("error")
def test_what_a_version_inherits_was_neither_added_nor_removed(store: Store) -> None:
    """The branch stores some of its parent's n-grams, some with other vectors, and has no unigrams."""
    base = lab.content(1)
    lab.put(store, "r", base)
    own = {3: (base[3][0][:20], base[3][1][:20]), 2: (base[2][0][:7], base[2][1][:7] + 1)}
    lab.put(store, "r/b", own)
    for report in (store.diff("r", "r/b", samples=100), store.diff("r/b", "r")):
        told = {order: (of.added, of.removed, of.changed, of.same) for order, of in report.orders.items()}
        sizes = {order: len(base[order][0]) for order in (3, 2, 1)}
        assert told == {3: (0, 0, 0, sizes[3]), 2: (0, 0, 7, sizes[2] - 7), 1: (0, 0, 0, sizes[1])}
    store.append("r/b", {3: (np.array([[1, 1, 1]], np.uint32), base[3][1][:1])})
    assert (store.diff("r", "r/b").orders[3].added, store.diff("r/b", "r").orders[3].removed) == (1, 1)


def test_diff_of_what_cannot_be_compared(store: Store) -> None:
    lab.put(store, "r", lab.content(1))
    lab.put(store, "s", lab.content(1, dim=8))
    with pytest.raises(Invalid, match="cannot be compared"):
        store.diff("r", "s")
    with pytest.raises(NotFound):
        store.diff("r", "none")


def test_pieces_bound_the_memory(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compaction and comparison give the same in pieces of a few rows."""
    import plot_store.reading.entries

    known = grow(store, 6)
    monkeypatch.setattr(plot_store.reading.entries, "PIECE_BYTES", 1000)
    old = store.version("r")
    assert store.compact("r", max_segments=1, target_bytes=1 << 14) is not None
    assert store.diff(old.id, "r").equal
    with store.reader("r") as reader:
        lab.same_as(reader, [known], lab.texts(4, (300,)))
    lab.check(store)


def test_every_width_of_window(store: Store) -> None:
    from hmi_kernels.lookup.layout import roles

    from plot_store import Schema

    rng = np.random.default_rng(5)
    for n in (1, 2, 5):
        ref, schema = f"n{n}", Schema(n=n, dim=8, vocab=50)
        made = {
            k: (
                rng.integers(1, 50, (40, k)).astype(np.uint32),
                rng.standard_normal((40, roles(n, k), 8), np.float32),
            )
            for k in schema.orders
        }
        with store.writer(ref, schema=schema, build=ref) as writer:
            for order, (ngrams, rows) in made.items():
                writer.add(order, ngrams[:10], rows[:10])
            first = writer.publish()
        for start in (5, 20):
            store.append(
                ref, {k: (g[start : start + 15], v[start : start + 15]) for k, (g, v) in made.items()}
            )
        old = store.version(ref)
        new = store.compact(ref, max_segments=1)
        assert new is not None
        assert store.diff(old.id, new.id).equal
        assert store.diff(first.id, new.id).orders[n].removed == 0
        store.export(ref, store.path.parent / "x.plot")
        with Store.open(store.path.parent / f"copy{n}", create=True) as copy:
            assert copy.import_archive(store.path.parent / "x.plot") == new
            lab.check(copy)
    lab.check(store)
