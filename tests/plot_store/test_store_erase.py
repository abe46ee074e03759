"""Erasure of n-grams: versions answer as if they had been built without them, and no file holds their bytes.

The reference is a store that is built anew without the n-grams.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import plotlab as lab
import pytest
from eraselab import (
    BASE,
    GONE,
    MORE,
    OTHERS,
    TEXTS,
    Ngrams,
    contains,
    expect,
    keys_of,
    left_of,
    rows_of,
    traces,
    without,
)
from formats.make import fixed
from hmi_kernels.lookup.layout import Window

from plot_store import EraseReport, InUse, Invalid, NotFound, Store
from plot_store.catalogue import catalogue, erased
from plot_store.catalogue.version_tree import named_segments
from plot_store.writing import writer

OLD = Path(__file__).parent / "formats"


@pytest.mark.parametrize(
    ("n", "dtype", "window"),
    [
        (3, "int8", "centred"),
        (3, "fp16", "causal"),
        (5, "int8", "centred"),
        (5, "fp32", "causal"),
        (1, "fp32", "centred"),
        (2, "fp16", "centred"),
    ],
)
def test_answers_are_those_of_a_store_built_without(
    store: Store, other: Store, n: int, dtype: str, window: Window, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chain, several segments and indexes, entries that newer ones replace, and merges afterwards."""
    counts = (200, 90, 60, 40, 8)[5 - n :]
    base, shadow, child = (lab.content(seed, counts, window=window) for seed in (1, 2, 3))
    for order, (ngrams, _) in shadow.items():  # the first of these replace entries of the base
        some = min(6, len(ngrams), len(base[order][0]))
        ngrams[:some] = base[order][0][:some]
    gone = {order: np.concatenate([base[order][0][:9], shadow[order][0][-3:]]) for order in base}
    given = {"dtype": dtype, "n": n, "window": window}

    def build(target: Store, drop: Ngrams) -> None:
        lab.put(target, "r", without(base, drop), segment_bytes=1 << 14, **given)
        lab.put(target, "r/a", without(child, drop), **given)
        with monkeypatch.context() as patch:
            patch.setattr(writer, "MAX_RUNS", 1 << 30)  # several indexes
            target.append("r", without(shadow, drop))

    build(store, {})
    before = {ref: store.history(ref) for ref in ("r", "r/a")}
    stored = set().union(*(lab.entries(made) for made in (base, shadow, child)))
    found = {order: len({*map(tuple, ngrams.tolist())} & stored) for order, ngrams in gone.items()}
    report = store.erase(["r", "r/a"], gone)
    assert report.ngrams == found
    build(other, gone)
    wanted = {**lab.entries(without(base, gone), dtype), **lab.entries(without(shadow, gone), dtype)}
    below = lab.entries(without(child, gone), dtype)
    chains = {"r": [wanted], "r/a": [below, lab.entries(without(base, gone), dtype)]}
    for ref, chain in chains.items():
        assert [v.id for v in store.history(ref)] == [v.id for v in before[ref]]
        assert contains(store, ref, gone) == {False}
        expect(store, ref, chain)
        with store.reader(ref) as mine, other.reader(ref) as built:
            assert np.array_equal(lab.look(mine, TEXTS)[0], lab.look(built, TEXTS)[0])
        assert store.version(ref).entries == other.version(ref).entries
    lab.check(store)
    late = lab.content(4, counts, window=window)
    for made in (late, lab.content(5, counts, window=window), lab.content(6, counts, window=window)):
        store.append("r", made)  # these merge what was erased from
        wanted.update(lab.entries(made, dtype))
    expect(store, "r", [wanted])
    store.compact("r", max_segments=1)
    expect(store, "r", [wanted])
    store.gc(keep_versions=1, orphan_age_s=-60)
    expect(store, "r", [wanted])
    lab.check(store)


def test_no_file_holds_a_trace(store: Store, tmp_path: Path) -> None:
    """Of packs, of tagged, pinned, older, dead versions, and of what a collection left in a shared file."""
    first = lab.put(store, "r", BASE, segment_bytes=1 << 14)
    store.tag("r", "kept", first.id)
    second = store.append("r", {3: (BASE[3][0][:3], BASE[3][1][:3] + 1)})
    store.pin(second.id, "me")
    lab.put(store, "r", OTHERS)
    dead = lab.put(store, "dead", {3: (BASE[3][0][20:30], BASE[3][1][:10])})
    store.delete("dead")
    # The pack of a collected version stays for the segment that a later version has, too.
    only, shared = {3: (BASE[3][0][22:25], BASE[3][1][:3])}, {2: OTHERS[2]}
    vain = lab.put(store, "vain", {**only, **shared})
    lab.put(store, "vain", {2: shared[2], 1: OTHERS[1]})
    store.export("r@kept", tmp_path / "old.plot")
    lost = rows_of(store, [vain.id], GONE)
    store.gc(keep_versions=1, orphan_age_s=-60, keep=[dead.id, first.id])
    assert vain.id not in {v.id for v in store.history("vain")}
    wanted = rows_of(store, [first.id, second.id, dead.id], GONE)
    assert len(wanted) == 32 + 3 + 5
    assert traces(store.path, wanted) == len(wanted)
    assert traces(store.path, keys_of(GONE)) == len(keys_of(GONE))
    report = store.erase(["r", "dead"], GONE)
    assert report.refs == ("dead", "r")
    assert set(report.versions) == {first.id, second.id, dead.id}
    assert (report.ngrams, report.rows) == ({3: 25, 2: 5, 1: 2}, len(wanted))
    assert (report.left, report.held) == ((), ())
    assert traces(store.path, wanted | keys_of(GONE) | lost) == 0
    assert (store.tags(), [pin.version for pin in store.pins()]) == ({"r@kept": first.id}, [second.id])
    for version in (first.id, second.id, dead.id):
        assert contains(store, version, GONE) == {False}
    expect(store, first.id, [lab.entries(without(BASE, GONE))])
    names = store._env().catalogue.read(named_segments)
    assert {p.name for p in (store.path / "segments").iterdir()} == lab.files(store, names)
    lab.check(store)
    assert store.scrub().ok


def test_what_changes_with_a_version_under_another_name(store: Store, tmp_path: Path) -> None:
    first = lab.put(store, "r", BASE)
    store.export("r", tmp_path / "x.plot")
    copy = store.import_archive(tmp_path / "x.plot", ref="q")
    own = lab.put(store, "q", {3: (BASE[3][0][::-1], BASE[3][1][::-1])})  # a segment that r does not have
    report = store.erase(["r"], GONE)
    assert (report.refs, set(report.versions)) == (("q", "r"), {first.id, copy.id})
    for version in (first.id, copy.id):
        expect(store, version, [lab.entries(without(BASE, GONE))])
    expect(store, own.id, [lab.entries({3: BASE[3]})])
    lab.check(store)


def test_a_dry_run_changes_nothing(store: Store) -> None:
    lab.put(store, "r", BASE)
    before = {p: p.read_bytes() for p in store.path.rglob("*") if p.is_file() and p.name != "lock.mdb"}
    steps: list[tuple[int, int]] = []
    dry = store.erase(["r"], GONE, dry_run=True, progress=lambda *step: steps.append(step))
    assert {p: p.read_bytes() for p in before} == before
    assert (
        steps[-1][0] == steps[-1][1] == sum(s.bytes for s in store.version("r").segments if s.kind == "rows")
    )
    real = store.erase(["r"], GONE)
    assert dry.dry_run
    assert dataclasses.replace(dry, dry_run=False) == real


def test_what_was_not_stored_changes_nothing(store: Store) -> None:
    version = lab.put(store, "r", BASE)
    absent = {3: np.array([[11, 11, 11]], np.uint32), 2: np.empty((0, 2), np.uint32)}
    assert not store.reader("r").contains(3, absent[3]).any()
    report = store.erase(["r"], absent)
    assert report == EraseReport(False, {3: 0, 2: 0}, (), (), (), 0, 0)
    assert store.version("r") == version
    assert store.info().format == catalogue.FORMAT
    assert store.erase(["r"], {}).ngrams == {}


def test_twice_and_one_after_another(store: Store) -> None:
    version = lab.put(store, "r", BASE)
    known, done = lab.entries(BASE), 0
    for start in range(0, 100, 10):
        some = {3: BASE[3][0][start : start + 10]}
        assert store.erase(["r"], some).ngrams == {3: 10}
        assert store.erase(["r"], some).ngrams == {3: 0}
        known, done = left_of(known, some), done + 10
        expect(store, "r", [known])
        lab.check(store)
    records = store._env().catalogue.read(
        lambda txn: {name: txn.get(erased.ERASED + name) for name in txn.keys(erased.ERASED)}
    )
    now = {segment.name for segment in store.version("r").segments}
    assert all(records[s.name]["by"]["name"] in now for s in version.segments if s.order == 3)  # in one step
    assert store.version("r").id == version.id


def test_all_rows_of_an_order_and_all_rows(store: Store) -> None:
    lab.put(store, "r", BASE)
    store.append("r", MORE)
    everything = {order: np.concatenate([BASE[order][0], MORE[order][0]]) for order in BASE}
    store.erase(["r"], {2: everything[2]})
    known = {**lab.entries(BASE), **lab.entries(MORE)}
    expect(store, "r", [left_of(known, {2: everything[2]})])
    assert store.version("r").entries[2] == 0
    store.erase(["r"], everything)
    expect(store, "r", [{}])
    assert store.version("r").segments == ()
    assert [p.name for p in (store.path / "segments").iterdir()] == []
    lab.check(store)
    store.append("r", MORE)
    expect(store, "r", [lab.entries(MORE)])
    lab.check(store)


def test_the_same_bytes_can_be_stored_again(store: Store) -> None:
    """By an append of its own, and by merges that would give an erased segment's bytes."""
    one, rest = {3: (BASE[3][0][:1], BASE[3][1][:1])}, {3: (BASE[3][0][1:], BASE[3][1][1:])}
    gone = {3: one[3][0]}
    lab.put(store, "r", rest)
    for _ in range(3):
        for _ in range(4):
            store.append("r", one)
        store.compact("r", max_segments=1)
        expect(store, "r", [lab.entries({3: BASE[3]})])
        assert store.erase(["r"], gone).ngrams == {3: 1}
        expect(store, "r", [lab.entries(rest)])
        assert {contained for v in store.history("r") for contained in contains(store, v.id, gone)} == {False}
        lab.check(store)


@pytest.mark.parametrize("stem", ["format-1", "format-2", "format-2-n5", "format-3", "format-4-n5"])
def test_segments_of_older_formats(store: Store, stem: str) -> None:
    version = store.import_archive(OLD / f"{stem}.plot")
    schema = version.schema
    made = fixed(schema.n, schema.window)
    gone = {order: ngrams[1::2] for order, (ngrams, _) in made.items()}
    wanted = rows_of(store, ["r/a"], gone)
    assert traces(store.path, wanted) == len(wanted) > 0
    store.erase(["r", "r/a"], gone)
    # Of n = 5, the keys of (7, 3, 10, 6) and (0, 7, 3, 10, 6) are the same.
    kept = keys_of({order: ngrams[::2] for order, (ngrams, _) in made.items()})
    assert traces(store.path, wanted | (keys_of(gone) - kept)) == 0
    chain = [lab.entries(without(made, gone), "fp16"), lab.entries(without(made, gone), "int8")]
    with store.reader("r/a") as reader:
        lab.same_as(reader, chain, [[0, 7, 3], [10, 6, 2, 9], [5], [0, 7, 3, 10, 6, 2, 9, 5]])
    lab.check(store)


def prepared(path: Path) -> tuple[set[bytes], list[str]]:
    """A store whose n-grams lie in shared and other files. Returns their traces, and the versions' ids."""
    with Store.open(path, create=True) as store:
        first = lab.put(store, "r", BASE, segment_bytes=1 << 14)
        second = store.append("r", {3: (BASE[3][0][:3], BASE[3][1][:3] + 1)})
        lab.put(store, "r/a", OTHERS)
        lab.put(
            store, "q", {2: OTHERS[2]}
        )  # a segment that r/a has, too: it lies in its own file from now on
        wanted = rows_of(store, [first.id, second.id], GONE)
    assert traces(path, wanted) == len(wanted)
    return wanted | keys_of(GONE), [first.id, second.id]


def erase(path: Path) -> None:
    with Store.open(path) as store:
        store.erase(["r"], GONE)


def test_killed_at_every_point(tmp_path: Path) -> None:
    n, died, erased_at = 0, True, 0
    while died:
        n += 1
        path = tmp_path / str(n)
        wanted, ids = prepared(path)
        died = lab.dies_at(n, erase, path)
        with Store.open(path) as store:
            now = {tuple(contains(store, version, GONE)) for version in (ids[0], "r")}
            assert now in ({(True,)}, {(False,)})  # in all versions, or in none
            if now == {(False,)}:
                erased_at = erased_at or n
            lab.same_as(store.reader("r/a"), [lab.entries(OTHERS), left_of(now_of(store), {})], TEXTS)
            assert store.verify().ok
        erase_with_age(path)
        assert traces(path, wanted) == 0
        with Store.open(path) as store:
            expect(store, "r", [lab.entries(without(BASE, GONE))])
            assert [v.id for v in reversed(store.history("r"))] == ids
            lab.check(store)
    assert 10 < erased_at < n - 3  # it died before and after


def now_of(store: Store) -> lab.Entries:
    """What r holds, whether its n-grams have been erased or not."""
    known = lab.entries(BASE)
    if contains(store, "r", GONE) == {True}:
        return {**known, **lab.entries({3: (BASE[3][0][:3], BASE[3][1][:3] + 1)})}
    return left_of(known, GONE)


def erase_with_age(path: Path) -> None:
    """Erase again, an hour later: the dead process' temporary files go, too."""
    for file in (path / "segments").iterdir():
        os.utime(file, (0, 0))
    with Store.open(path) as store:
        assert store.erase(["r"], GONE).left == ()


def test_temporary_files_that_hold_them_are_named(store: Store) -> None:
    lab.put(store, "r", BASE)
    rows = next(s for s in store.version("r").segments if s.kind == "rows" and s.order == 3)
    bad, good = store.path / "segments" / "1.tmp", store.path / "segments" / "2.tmp"
    bad.write_bytes(lab.piece(store, rows.name).read_bytes())
    good.write_bytes(bytes(5000))
    (left,) = store.erase(["r"], GONE).left
    assert left.startswith("1.tmp: a build writes it, or died")
    os.utime(bad, (0, 0))
    assert store.erase(["r"], GONE).left == ()
    assert (bad.exists(), good.exists()) == (False, True)


def test_a_damaged_segment_beside_them_is_named(store: Store) -> None:
    lab.put(store, "r", {3: BASE[3], 2: OTHERS[2]})
    sound = store.version("r")
    store.export("r", store.path.parent / "x.plot")
    rows = next(s for s in sound.segments if s.kind == "rows" and s.order == 2)
    lab.piece(store, rows.name).flip(rows.bytes // 2)
    (left,) = store.erase(["r"], {3: BASE[3][0][:5]}).left
    assert rows.name in left
    assert "restore it" in left
    store.import_archive(store.path.parent / "x.plot")
    assert store.erase(["r"], {3: BASE[3][0][:5]}).left == ()
    lab.check(store)


def test_open_readers_keep_what_they_have_mapped(store: Store) -> None:
    version = lab.put(store, "r", BASE)
    lab.put(store, "r/a", OTHERS)
    with store.reader("r/a") as reader:
        assert store.erase(["r"], GONE).held == (version.id,)
        lab.same_as(reader, [lab.entries(OTHERS), lab.entries(BASE)], TEXTS)
    expect(store, "r/a", [lab.entries(OTHERS), lab.entries(without(BASE, GONE))])


def test_builds_in_progress(store: Store) -> None:
    lab.put(store, "r", BASE)
    with store.writer("r", schema=lab.schema(), build="mine", extend=True) as open_build:
        open_build.add(3, *MORE[3])
        open_build.seal()
    with pytest.raises(InUse, match=r"build 'mine' of r is in progress.*abandon"):
        store.erase(["r"], GONE)
    assert contains(store, "r", GONE) == {True}
    store.abandon("mine")
    store.export("r", store.path.parent / "x.plot")
    store.import_archive(store.path.parent / "x.plot", ref="q")
    with store.writer("q", schema=lab.schema(), build="theirs", extend=True):
        with pytest.raises(InUse, match="build 'theirs' of q"):  # it extends a segment of r
            store.erase(["r"], GONE)
    store.abandon("theirs")
    with store.writer("q", schema=lab.schema(), build="other") as other_build:
        other_build.add(2, *OTHERS[2])
        store.erase(["r"], GONE)
        expect(store, other_build.publish().id, [lab.entries({2: OTHERS[2]})])
    lab.check(store)


@pytest.mark.parametrize(
    ("refs", "ngrams", "says"),
    [
        ("r", {}, "refs = 'r' is not a list"),
        ([], {}, "refs is empty"),
        (["R"], {}, "'R' is not a ref"),
        (["r"], [1], "ngrams = .* is not a dict"),
        (["r"], {4: np.zeros((1, 4), np.uint32)}, "ngrams: order 4 is unknown where n = 3"),
        (["r"], {0: np.zeros((1, 0), np.uint32)}, "ngrams: order 0 is unknown"),
        (["r"], {3: np.zeros((1, 2), np.uint32)}, r"ngrams: .* of shape \[m, 3\]"),
        (["r"], {3: np.zeros((1, 3), np.float32)}, "ngrams: .* must be integers"),
        (["r"], {1: np.array([[lab.VOCAB]], np.uint32)}, "ngrams: a token id is outside 0..11"),
    ],
)
def test_what_is_impossible_is_refused(store: Store, refs: Any, ngrams: Any, says: str) -> None:
    lab.put(store, "r", BASE)
    with pytest.raises(Invalid, match=says):
        store.erase(refs, ngrams)
    with pytest.raises(NotFound, match="no version of 'nobody'"):
        store.erase(["r", "nobody"], {})
