"""Appends, which merge the small segments of earlier ones, and appends beside other publications.

They land on top of these, or stop if they depend on what changed.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import plotlab as lab
import pytest
from hmi_kernels.lookup.layout import Window

from plot_store import ANY, Conflict, Damaged, Store, StoreIO, VersionInfo
from plot_store.ground.nouns import SegmentInfo
from plot_store.segments import format as fmt
from plot_store.segments import segment
from plot_store.writing import indexing, merging, publication, writer
from plot_store.writing.merging import GROWTH, MAX_RACED, MAX_RUNS
from plot_store.writing.segment_writer import SegmentWriter

PROCESSES, APPENDS = 4, 50


def added(seed: int) -> lab.Content:
    """A few trigrams and unigrams, some of which others add, too."""
    made = lab.content(seed, (3, 0, 2))
    return {order: made[order] for order in (3, 1)}


def check_entries(store: Store, version: str, known: lab.Entries, absent: lab.Entries) -> None:
    """Assert that a version stores exactly `known`, of the n-grams in either dictionary."""
    with store.reader(version) as reader:
        for order in (1, 3):
            grams = sorted(gram for gram in known | absent if len(gram) == order)
            vectors, depths = reader.get(order, np.array(grams, np.uint32).reshape(-1, order))
            for gram, vector, depth in zip(grams, vectors, depths.tolist(), strict=True):
                assert (depth == 0) == (gram in known), gram
                assert gram not in known or np.array_equal(vector, known[gram]), gram


APPENDER = """
import sys, plotlab as lab
from plot_store import Store
from test_store_append import added
path, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with Store.open(path) as store:
    print("open", flush=True)
    sys.stdin.readline()
    for seed in range(first, first + count):
        version = store.append("r", added(seed), meta={"seed": seed})
        assert version.meta["seed"] == seed and version.previous is not None
"""


def test_four_processes_append_to_one_ref(store: Store) -> None:
    """All succeed, no entry is lost, and each version is the sum of what was published up to it."""
    lab.put(store, "r", added(0), meta={"seed": 0})
    command = [sys.executable, "-c", APPENDER, str(store.path)]
    children = [
        subprocess.Popen(
            [*command, str(1 + APPENDS * number), str(APPENDS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=lab.child_env(),
        )
        for number in range(PROCESSES)
    ]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
    ends = [(child.communicate("\n", timeout=300)[1], child.returncode) for child in children]
    assert [code for _, code in ends] == [0] * PROCESSES, ends
    history = store.history("r")[::-1]
    assert sorted(version.meta["seed"] for version in history) == list(range(1 + PROCESSES * APPENDS))
    everything: lab.Entries = {}
    for version in history:
        everything |= lab.entries(added(version.meta["seed"]))
    known: lab.Entries = {}
    before: VersionInfo | None = None
    for version in history:
        known |= lab.entries(added(version.meta["seed"]))
        assert version.previous == (None if before is None else before.id)
        check_entries(store, version.id, known, everything)
        before = version
    lab.check(store)


def segments(version: VersionInfo, order: int, kind: str = "rows") -> dict[str, int]:
    """The sizes of a version's segments by name."""
    return {s.name: s.bytes for s in version.segments if (s.order, s.kind) == (order, kind)}


@pytest.mark.parametrize("window", ["centred", "causal"])
@pytest.mark.parametrize("n", [3, 5])
@pytest.mark.parametrize("seed", range(3))
def test_what_merges_leave_is_what_a_dictionary_says(
    store: Store, monkeypatch: pytest.MonkeyPatch, seed: int, n: int, window: Window
) -> None:
    """Random appends, builds and compactions, some of the same n-grams with the same or other vectors."""
    for module in (merging, indexing):
        monkeypatch.setattr(module, "SEGMENT_BYTES", 1 << 15)
    draw, known = random.Random(seed), lab.Entries()
    large: dict[int, set[str]] = {}
    for step in range(40):
        number = draw.randrange(12)
        counts = [(30 if number else 800) // (1 + place) for place in range(n)]
        made = lab.content(number, counts, vocab=8, window=window)
        if draw.random() < 0.5:
            made = {order: (ngrams, rows[::-1]) for order, (ngrams, rows) in made.items()}
        kind = draw.choices(["append", "extend", "sealed", "compact"], [8, 2, 2, 1])[0] if step else "new"
        if kind == "append":
            version = store.append("r", made)
        elif kind == "sealed":
            with store.writer("r", schema=version.schema, build="sealed", extend=True) as halves:
                for half in (slice(0, None, 2), slice(1, None, 2)):
                    for order, (ngrams, rows) in made.items():
                        halves.add(order, ngrams[half], rows[half])
                    halves.seal()
                version = halves.publish()
        elif kind != "compact":
            version = lab.put(store, "r", made, n=n, vocab=8, window=window, extend=kind == "extend")
        elif (found := store.compact("r", max_segments=1, target_bytes=1 << 15)) is not None:
            version = found
        if kind != "compact":
            known |= lab.entries(made)
        assert {order: large.get(order, set()) - segments(version, order).keys() for order in made} == {
            order: set() for order in made
        }
        for order in made:
            sizes = segments(version, order)
            large[order] = {name for name, size in sizes.items() if size >= 1 << 14}
            runs = len(version.indexes(order))
            assert runs <= MAX_RUNS + np.emath.logn(GROWTH, sum(len(g) == order for g in known)), (
                step,
                order,
            )
            assert len(sizes) - len(large[order]) <= 3 * runs, (step, order)  # copies, and two of a build
        with store.reader("r") as reader:
            lab.same_as(reader, [known], lab.texts(step, vocab=8))
    with store.reader("r") as reader:
        for order in made:
            found = set(map(tuple, reader.ngrams(order).tolist()))
            assert found == {gram for gram in known if len(gram) == order}
    lab.check(store)


def test_an_append_that_merges_and_fails_leaves_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever sync fails. Then it succeeds, and all is in one segment of each order."""
    lab.put(store, "r", added(0))
    known = lab.entries(added(0))
    for seed in range(1, MAX_RUNS):
        store.append("r", added(seed))
        known |= lab.entries(added(seed))
    before, real, failed = store.version("r"), os.fsync, 0
    files = {file.name for file in (store.path / "segments").iterdir()}
    while store.version("r") == before:
        left = [failed]

        def failing(fd: int, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == -1:
                raise OSError(5, "Input/output error")
            real(fd)

        with monkeypatch.context() as patch, contextlib.suppress(StoreIO):
            patch.setattr(os, "fsync", failing)
            failed += 1
            version = store.append("r", added(50))
        if store.version("r") == before:
            store.gc(orphan_age_s=-60)  # files that got their names before the folder could not be synced
            assert {file.name for file in (store.path / "segments").iterdir()} == files
            check_entries(store, "r", known, lab.entries(added(50)))
    assert failed > 2  # syncs of the file, and of the folder
    assert {order: len(version.indexes(order)) for order in (1, 3)} == {1: 1, 3: 1}
    assert len(version.segments) == 4
    check_entries(store, "r", known | lab.entries(added(50)), {})
    lab.check(store)


def test_a_merge_keeps_what_an_older_index_covers_and_does_not_read_that_index(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment of the first build is appended again, so that two indexes cover it."""
    base = {3: lab.content(0, (1500, 0, 0))[3]}
    first = lab.put(store, "r", base, segment_bytes=1 << 14)
    (old,) = first.indexes(3)
    twice = next(s for s in first.segments if s.kind == "rows")
    store.append("r", {3: (base[3][0][: twice.count], base[3][1][: twice.count])})
    known = lab.entries(base)
    read: list[str] = []
    check_content = segment._check_content

    def checked(fd: int, info: SegmentInfo, at: int) -> None:
        read.append(info.name)
        check_content(fd, info, at)

    monkeypatch.setattr(segment, "_check_content", checked)
    for seed in range(1, MAX_RUNS):
        made = {3: lab.content(seed, (20, 0, 0))[3]}
        version = store.append("r", made)
        known |= lab.entries(made)
    assert len(version.indexes(3)) == 2
    assert version.indexes(3)[0] == old
    assert {s.name for s in first.segments} <= {s.name for s in version.segments}
    assert read
    assert old.name not in read
    check_entries(store, "r", known, {})
    lab.check(store)
    lab.piece(store, old.name).flip(fmt.HEADER_BYTES)  # the name of a segment that it covers
    for seed in range(MAX_RUNS, MAX_RUNS + 3):
        with contextlib.suppress(Damaged):
            store.append("r", {3: lab.content(seed, (20, 0, 0))[3]})
    assert len(store.version("r").indexes(3)) == MAX_RUNS  # none beside an index that is damaged


def meanwhile(monkeypatch: pytest.MonkeyPatch, *acts: Callable[[], object]) -> None:
    """Call each of `acts` just before the transaction of a publication that is not of `acts` themselves."""
    real, waiting = publication.publish, list(acts)

    def publish(*given: object) -> VersionInfo:
        if waiting:
            act, later = waiting[0], waiting[1:]
            waiting.clear()
            act()
            waiting.extend(later)
        return real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(publication, "publish", publish)


@pytest.mark.parametrize("others", [1, MAX_RUNS - 1, MAX_RUNS, 2 * MAX_RUNS])
@pytest.mark.parametrize("before", [0, MAX_RUNS - 1])
@pytest.mark.parametrize("raced", [1, MAX_RACED])
def test_an_append_lands_on_top_of_what_came_first(
    store: Store, monkeypatch: pytest.MonkeyPatch, before: int, others: int, raced: int
) -> None:
    """Its rows are written again only if they were merged with those of the old base, or the new one is due.

    raced: from so many indexes on an append merges even though it was overtaken.
    """
    for module in (writer, indexing):
        monkeypatch.setattr(module, "MAX_RACED", raced)
    lab.put(store, "r", added(0), meta={"kept": "old", "compacted": "v" + "0" * 32})
    seeds = [*range(1, 1 + before), *range(20, 20 + others), 50]
    for seed in range(1, 1 + before):
        store.append("r", added(seed))
    landed: list[str] = []
    written: list[int] = []
    real = SegmentWriter.write
    monkeypatch.setattr(SegmentWriter, "write", lambda *given: written.append(given[2]) or real(*given))

    def act() -> None:
        landed.extend(store.append("r", added(s), meta={"kept": s}).id for s in range(20, 20 + others))
        written.clear()

    # the rows of the append are written before `act`, and those of the others are forgotten by it
    meanwhile(monkeypatch, act)
    version = store.append("r", added(50), meta={"own": 1})
    assert written == ([3, 1] if before == MAX_RUNS - 1 or raced == 1 else [])
    assert version.previous == landed[-1]
    assert version.meta == {"kept": 19 + others, "own": 1}
    known: lab.Entries = {}
    for seed in (0, *seeds):
        known |= lab.entries(added(seed))
    check_entries(store, "r", known, {})
    assert max(len(version.indexes(order)) for order in (1, 3)) <= MAX_RUNS + 1
    lab.check(store)


def test_an_append_lands_on_top_of_a_compaction_and_of_a_new_build(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.put(store, "r", added(0))
    store.append("r", added(1))
    meanwhile(monkeypatch, lambda: store.compact("r", max_segments=1))
    version = store.append("r", added(2))
    assert "compacted" not in version.meta
    known = {**lab.entries(added(0)), **lab.entries(added(1)), **lab.entries(added(2))}
    check_entries(store, "r", known, {})
    meanwhile(monkeypatch, lambda: lab.put(store, "r", added(3)))
    store.append("r", added(4))
    check_entries(store, "r", {**lab.entries(added(3)), **lab.entries(added(4))}, known)
    lab.check(store)


def test_an_append_beside_a_collection(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The build keeps the version that it extends. If those in between are gone, it cannot tell what came."""
    lab.put(store, "r", added(0))
    known = lab.entries(added(0))

    def others(seeds: range) -> None:
        for seed in seeds:
            store.append("r", added(seed))
            known.update(lab.entries(added(seed)))
        store.gc(keep_versions=1)

    meanwhile(monkeypatch, lambda: others(range(1, 2)))
    second = store.append("r", added(9))
    known |= lab.entries(added(9))
    check_entries(store, "r", known, {})
    meanwhile(monkeypatch, lambda: others(range(2, 4)))
    with pytest.raises(Conflict, match=second.id):
        store.append("r", added(10))
    check_entries(store, "r", known, {})


def test_an_append_that_makes_its_indexes_anew_keeps_its_new_base(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.put(store, "r", added(0))
    known = lab.entries(added(0))
    landed: list[str] = []

    def another(seed: int) -> None:
        landed.append(store.append("r", added(seed)).id)
        known.update(lab.entries(added(seed)))

    def overtake() -> None:
        base = landed[-1]
        another(20)
        assert base not in store.gc(keep_versions=1).versions

    for seed in range(1, MAX_RUNS):
        another(seed)
    meanwhile(monkeypatch, lambda: another(10), overtake)
    version = store.append("r", added(50))
    assert len(landed) == MAX_RUNS + 1
    assert version.previous == landed[-1]
    check_entries(store, "r", known | lab.entries(added(50)), {})
    lab.check(store)


def rolled_back(store: Store, old: VersionInfo) -> None:
    store.rollback("r", old.id)


def rolled_back_and_built_on(store: Store, old: VersionInfo) -> None:
    store.rollback("r", old.id)
    store.append("r", added(5))


def built_on_another_parent(store: Store, old: VersionInfo) -> None:
    lab.put(store, "other", added(6))
    lab.put(store, "r", added(7), parent="other")


def built_with_another_schema(store: Store, old: VersionInfo) -> None:
    lab.put(store, "r", added(7), dtype="fp16")


def deleted_and_built_anew(store: Store, old: VersionInfo) -> None:
    store.delete("r")
    lab.put(store, "r", added(7))


@pytest.mark.parametrize(
    "act",
    [
        rolled_back,
        rolled_back_and_built_on,
        built_on_another_parent,
        built_with_another_schema,
        deleted_and_built_anew,
    ],
)
def test_an_append_stops_if_it_depends_on_what_changed(
    store: Store, monkeypatch: pytest.MonkeyPatch, act: Callable[[Store, VersionInfo], None]
) -> None:
    old = lab.put(store, "r", added(0))
    lab.put(store, "r", added(1))
    meanwhile(monkeypatch, lambda: act(store, old))
    with pytest.raises(Conflict, match="r moved to"):
        store.append("r", added(2))
    assert store._env().catalogue.read(lambda txn: txn.keys("build/")) == []
    lab.check(store)


def test_an_explicit_base_is_not_exchanged(store: Store) -> None:
    base = lab.put(store, "r", added(0))
    with store.writer("r", schema=lab.schema(), build="mine", extend=True) as writer:
        writer.add(3, *added(1)[3])
        store.append("r", added(2))
        for expect in (base.id, ANY):
            with pytest.raises(Conflict, match="moved"):
                writer.publish(expect=expect)
        writer.abort()
    lab.check(store)
