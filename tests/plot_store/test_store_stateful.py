"""Random operations against a plain in-memory model; the store is verified after every step."""

from __future__ import annotations

import contextlib
import shutil

import plotlab as lab
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from plot_store import ANY, Conflict, InUse, NotFound, Reader, Store, VersionInfo
from plot_store.writing import writer

REFS = ["a", "b", "a/x", "a/y", "a/x/z"]
seeds = st.integers(0, 30)
refs = st.sampled_from(REFS)


class StoreMachine(RuleBasedStateMachine):
    """`current`: where each ref points; `entries`: each version's own; `kept`: each ref's versions."""

    def __init__(self) -> None:
        super().__init__()
        self.held = contextlib.ExitStack()
        patch = self.held.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(writer, "MAX_RUNS", 2)  # appends merge often
        self.folder = self.held.enter_context(lab.scratch())
        self.store = Store.open(self.folder / "s", create=True)
        self.versions: dict[str, VersionInfo] = {}
        self.entries: dict[str, lab.Entries] = {}
        self.current: dict[str, str] = {}
        self.kept: dict[str, list[str]] = {}
        self.readers: list[tuple[Reader, list[lab.Entries]]] = []
        self.tags: dict[str, str] = {}
        self.pins: set[str] = set()
        self.builds = 0

    def chain(self, version_id: str | None) -> list[lab.Entries]:
        found = []
        while version_id is not None:
            found.append(self.entries[version_id])
            version_id = self.versions[version_id].parent
        return found

    @rule(ref=refs, seed=seeds, extend=st.booleans(), dtype=st.sampled_from(["int8", "fp16"]))
    def publish(self, ref: str, seed: int, extend: bool, dtype: str) -> None:
        made = lab.content(seed, (25, 8, 4))
        before = self.current.get(ref)
        if extend and before is not None:
            dtype = self.versions[before].schema.dtype
        self.builds += 1
        try:
            version = lab.put(
                self.store, ref, made, dtype=dtype, extend=extend, build=f"b{self.builds}", expect=ANY
            )
        except NotFound:
            assert before is None
            assert ref.rpartition("/")[0] not in self.current
            return
        old = self.entries[before] if extend and before is not None else {}
        self.versions[version.id] = version
        self.entries[version.id] = {**old, **lab.entries(made, dtype)}
        assert version.previous == before
        self.current[ref] = version.id
        self.kept[ref] = [version.id, *self.kept.get(ref, [])]

    def published(self, version: VersionInfo, entries: lab.Entries) -> None:
        self.versions[version.id], self.entries[version.id] = version, entries
        assert version.previous == self.current[version.ref]
        self.current[version.ref] = version.id
        self.kept[version.ref].insert(0, version.id)

    @precondition(lambda self: self.current)
    @rule(data=st.data(), seed=seeds)
    def append(self, data: st.DataObject, seed: int) -> None:
        ref = data.draw(st.sampled_from(sorted(self.current)))
        before = self.current[ref]
        made = lab.content(seed, (15, 5, 3))
        version = self.store.append(ref, made)
        self.published(version, {**self.entries[before], **lab.entries(made, version.schema.dtype)})

    @precondition(lambda self: self.current)
    @rule(data=st.data(), most=st.integers(1, 3))
    def compact(self, data: st.DataObject, most: int) -> None:
        ref = data.draw(st.sampled_from(sorted(self.current)))
        before = self.current[ref]
        version = self.store.compact(ref, max_segments=most, target_bytes=1 << 15)
        if version is not None:
            assert self.store.diff(before, version.id).equal
            self.published(version, self.entries[before])

    @precondition(lambda self: self.current)
    @rule(data=st.data(), name=st.sampled_from(["x", "y"]))
    def tag(self, data: st.DataObject, name: str) -> None:
        ref = data.draw(st.sampled_from(sorted(self.current)))
        target = data.draw(st.sampled_from(self.kept[ref]))
        known = self.tags.get(f"{ref}@{name}", target)
        try:
            assert self.store.tag(ref, name, target) == target == known
            self.tags[f"{ref}@{name}"] = target
        except Conflict:
            assert target != known

    @rule(ref=refs, name=st.sampled_from(["x", "y"]))
    def untag(self, ref: str, name: str) -> None:
        assert self.store.untag(ref, name) == (self.tags.pop(f"{ref}@{name}", None) is not None)

    @precondition(lambda self: self.current)
    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        ref = data.draw(st.sampled_from(sorted(self.current)))
        self.pins.add(self.store.pin(ref, "me").version)

    @precondition(lambda self: self.pins)
    @rule()
    def unpin(self) -> None:
        assert self.store.unpin(self.pins.pop(), "me")

    @precondition(lambda self: self.current)
    @rule(data=st.data())
    def roll(self, data: st.DataObject) -> None:
        ref = data.draw(st.sampled_from(sorted(self.current)))
        target = data.draw(st.sampled_from(self.kept[ref]))
        self.store.rollback(ref, target)
        self.current[ref] = target

    @rule(ref=refs)
    def delete(self, ref: str) -> None:
        depend = [
            other
            for other, v in self.current.items()
            if other != ref and any(self.versions[p].ref == ref for p in self.ancestors(v)[1:])
        ]
        try:
            self.store.delete(ref)
            assert ref in self.current
            assert not depend
            assert not self.tagged(ref)
            del self.current[ref], self.kept[ref]
        except NotFound:
            assert ref not in self.current
        except InUse:
            assert depend or self.tagged(ref)

    @rule(keep=st.integers(1, 3))
    def collect(self, keep: int) -> None:
        self.store.gc(keep_versions=keep, orphan_age_s=-60)
        named = {*self.tags.values(), *self.pins}
        for ref, versions in self.kept.items():
            self.kept[ref] = [
                v for i, v in enumerate(versions) if i < keep or v == self.current[ref] or v in named
            ]
        roots = [v for versions in self.kept.values() for v in versions] + [
            r.version.id for r, _ in self.readers
        ]
        roots += named
        live = {name for v in roots for a in self.ancestors(v) for name in self.names(a)}
        assert {p.name for p in (self.store.path / "segments").iterdir()} == lab.files(self.store, live)

    @precondition(lambda self: self.current)
    @rule(seed=seeds)
    def erase(self, seed: int) -> None:
        """From the versions of all refs, so that it does not matter which of them share a segment."""
        there = {}
        for version_id in self.versions:
            with contextlib.suppress(NotFound):
                there[version_id] = self.store.version(version_id)
        gone = {order: ngrams[:4] for order, (ngrams, _) in lab.content(seed, (25, 8, 4)).items()}
        dropped = {tuple(g) for ngrams in gone.values() for g in ngrams.tolist()}
        report = self.store.erase({version.ref for version in there.values()}, gone)
        assert set(report.versions) == {v for v in there if dropped & self.entries[v].keys()}
        assert report.left == ()
        for version_id in there:
            own = self.entries[version_id]
            self.entries[version_id] = {ngram: rows for ngram, rows in own.items() if ngram not in dropped}
            self.versions[version_id] = self.store.version(version_id)

    @precondition(lambda self: self.current)
    @rule(data=st.data())
    def open_reader(self, data: st.DataObject) -> None:
        ref = data.draw(st.sampled_from(sorted(self.current)))
        self.readers.append((self.store.reader(ref), self.chain(self.current[ref])))

    @precondition(lambda self: self.readers)
    @rule()
    def close_reader(self) -> None:
        self.readers.pop(0)[0].close()

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = Store.open(self.folder / "s")

    @precondition(lambda self: self.current)
    @rule(data=st.data())
    def there_and_back(self, data: st.DataObject) -> None:
        ref = data.draw(st.sampled_from(sorted(self.current)))
        self.store.export(ref, self.folder / "x.plot")
        with Store.open(self.folder / "copy", create=True) as copy:
            assert copy.import_archive(self.folder / "x.plot") == self.store.version(ref)
            with copy.reader(ref) as reader:
                lab.same_as(reader, self.chain(self.current[ref]), lab.texts(1))
        shutil.rmtree(self.folder / "copy")

    @invariant()
    def agrees(self) -> None:
        assert {ref: v.id for ref, v in self.store.refs().items()} == self.current
        for ref, version_id in self.current.items():
            assert [v.id for v in self.store.history(ref)] == self.kept[ref]
            with self.store.reader(ref) as reader:
                lab.same_as(reader, self.chain(version_id), lab.texts(2, (3, 12)))
        assert self.store.tags() == self.tags
        assert {pin.version for pin in self.store.pins()} == self.pins
        for reader, chain in self.readers:
            lab.same_as(reader, chain, lab.texts(2, (3, 12)))
        lab.check(self.store)

    def tagged(self, ref: str) -> list[str]:
        return [tag for tag in self.tags if tag.partition("@")[0] == ref]

    def ancestors(self, version_id: str) -> list[str]:
        found: list[str] = []
        walk: str | None = version_id
        while walk is not None:
            found.append(walk)
            walk = self.versions[walk].parent
        return found

    def names(self, version_id: str) -> set[str]:
        return {s.name for s in self.versions[version_id].segments}

    def teardown(self) -> None:
        for reader, _ in self.readers:
            reader.close()
        self.store.close()
        self.held.close()


StoreMachine.TestCase.settings = settings(
    max_examples=15, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestStore = StoreMachine.TestCase
