"""Random operations against a plain in-memory model; the store is verified after every step."""

from __future__ import annotations

import contextlib
import shutil

import plotlab as lab
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from plot_store import ANY, InUse, NotFound, Reader, Store, VersionInfo

REFS = ["a", "b", "a/x", "a/y", "a/x/z"]
seeds = st.integers(0, 30)
refs = st.sampled_from(REFS)


class StoreMachine(RuleBasedStateMachine):
    """current: where each ref points; entries: what each version of its own holds; kept: each ref's versions."""

    def __init__(self) -> None:
        super().__init__()
        self.held = contextlib.ExitStack()
        self.folder = self.held.enter_context(lab.scratch())
        self.store = Store.open(self.folder / "s", create=True)
        self.versions: dict[str, VersionInfo] = {}
        self.entries: dict[str, lab.Entries] = {}
        self.current: dict[str, str] = {}
        self.kept: dict[str, list[str]] = {}
        self.readers: list[tuple[Reader, list[lab.Entries]]] = []
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
            version = lab.put(self.store, ref, made, dtype=dtype, extend=extend, build=f"b{self.builds}", expect=ANY)
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
            del self.current[ref], self.kept[ref]
        except NotFound:
            assert ref not in self.current
        except InUse:
            assert depend

    @rule(keep=st.integers(1, 3))
    def collect(self, keep: int) -> None:
        self.store.gc(keep_versions=keep, orphan_age_s=-60)
        for ref, versions in self.kept.items():
            self.kept[ref] = [v for i, v in enumerate(versions) if i < keep or v == self.current[ref]]
        roots = [v for versions in self.kept.values() for v in versions] + [r.version.id for r, _ in self.readers]
        live = {name for v in roots for a in self.ancestors(v) for name in self.names(a)}
        assert {p.name for p in (self.store.path / "segments").iterdir()} == live

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
        for reader, chain in self.readers:
            lab.same_as(reader, chain, lab.texts(2, (3, 12)))
        lab.check(self.store)

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
    max_examples=12, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
TestStore = StoreMachine.TestCase
