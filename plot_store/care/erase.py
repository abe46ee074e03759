"""Erasure of single n-grams: their rows and keys leave all versions of some refs, and the store's files.

Segments that hold one of them are written again without it, and so are the indexes that cover these. One
transaction then records what stands for each (`catalogue.erased`). Manifests stay, and so do ids, tags and
pins. All heavy work is done before, on a snapshot. The transaction looks at what was recorded since. If that
concerns the erasure, it is prepared again, of which most is done already.

Then `rewrite.remove_dead` removes the bytes. If the process ends in between, a repetition goes on there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
from hmi_kernels.lookup.layout import Bytes, Keys, pack_keys, row_keys, words
from numpy.typing import NDArray

from plot_store.care import rewrite
from plot_store.catalogue import changes, erased, version_tree
from plot_store.catalogue.catalogue import CatalogueTxn
from plot_store.catalogue.changes import Seen
from plot_store.catalogue.erased import ERASED
from plot_store.catalogue.records import BuildRecord
from plot_store.catalogue.version_tree import BUILD, VERSION
from plot_store.environment.environment import Environment
from plot_store.ground import names
from plot_store.ground.errors import Conflict, Damaged, InUse, Invalid, NotFound
from plot_store.ground.ngrams import check_ngrams
from plot_store.ground.nouns import EraseReport, Progress, Schema, SegmentInfo, VersionInfo, last_of_each
from plot_store.reading.entries import with_checks
from plot_store.segments import format as fmt
from plot_store.segments.drafts import Draft, Drafts
from plot_store.segments.segment import MappedSegment
from plot_store.writing import builds, promote
from plot_store.writing.indexing import write_index

MAX_TRIES: Final = 16  # to commit beside others that keep publishing
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class _Look:
    """The versions and builds that a snapshot of the catalogue had."""

    versions: tuple[VersionInfo, ...]  # of the refs
    builds: dict[str, BuildRecord]  # all builds in progress
    seen: Seen

    def rows(self, refs: frozenset[str], orders: Iterable[int]) -> dict[str, tuple[SegmentInfo, Schema]]:
        """Return the rows segments of the versions, and of the refs' builds, by name."""
        listed = [(s, v.schema) for v in self.versions for s in v.segments]
        listed += [(s, b.schema) for b in self.builds.values() if b.ref in refs for s in b.segments]
        return {s.name: (s, schema) for s, schema in listed if s.kind == "rows" and s.order in orders}


@dataclass(frozen=True)
class _Scanned:
    """The result of searching a rows segment for the n-grams."""

    kept: Bools  # [rows]: which rows stay
    found: Bools  # [n-grams of the order]: which n-grams it has

    @property
    def hit(self) -> bool:
        """Return whether the segment has any of them."""
        return bool(self.found.any())


@dataclass(frozen=True)
class _Affected:
    """The segments, versions and builds that an erasure changes."""

    rows: dict[str, tuple[SegmentInfo, Schema]]  # those that a version has, by name
    indexes: dict[str, tuple[SegmentInfo, VersionInfo]]  # those that cover one of these, with a version
    versions: tuple[VersionInfo, ...]  # of any ref, that have such segments
    ended: tuple[str, ...]  # ids of builds of single calls that would bring n-grams back


def erase(
    environment: Environment,
    refs: Iterable[str],
    ngrams: Mapping[int, NDArray[np.uint32]],
    dry_run: bool,
    progress: Progress | None,
) -> EraseReport:
    """See `Store.erase`."""
    work = _Erasure(environment, _checked_refs(refs), ngrams, progress)
    try:
        for _ in range(MAX_TRIES):
            report = work.attempt(dry_run)
            if report is not None:
                break
        else:
            raise Conflict(
                f"{', '.join(sorted(work.refs))} moved {MAX_TRIES} times, and nothing was erased: erase "
                "again when fewer builds publish there"
            )
    finally:
        promote.discard(work.drafts)
    return report if dry_run else replace(report, left=tuple(rewrite.remove_dead(environment, work.keys)))


class _Erasure:
    """One erasure. What an attempt has scanned and written, a later one uses."""

    def __init__(
        self, environment: Environment, refs: frozenset[str], ngrams: Any, progress: Progress | None
    ) -> None:
        self.refs = refs
        self.keys: dict[int, Keys] = {}  # the distinct n-grams, by order: uint64 [m, words]
        self.drafts: list[Draft] = []
        self._environment = environment
        self._ngrams = ngrams
        self._progress = progress
        self._scanned: dict[str, _Scanned] = {}
        self._covered: dict[str, tuple[str, ...]] = {}  # the names of the rows segments under each index
        self._stands: dict[str, SegmentInfo | None] = {}  # what stands for each segment that is replaced
        self._new_keys: dict[str, Keys] = {}  # of the new rows segments
        self._over: dict[str, tuple[SegmentInfo, ...]] = {}  # what is under each new index, by the old name
        self._edition = erased.new_edition()
        self._records: dict[bytes, bytes] = {}  # of erased segments, as the last attempt found them

    def attempt(self, dry_run: bool) -> EraseReport | None:
        """Try once. Returns None if others changed what is to be erased meanwhile."""
        catalogue = self._environment.catalogue
        affected: _Affected | None = None
        look = catalogue.read(self._look)
        self._forget_unless_same(look)
        try:
            self._scan(look)
            affected = self._affected(look)
            if not dry_run:
                self._write(affected)
        except Damaged:
            if catalogue.read(partial(self._has_gone, look, affected)):
                return None
            raise
        if dry_run or not (affected.rows or affected.ended):
            return self._report(affected, self._environment.held(), dry_run)
        held = self._environment.write_freeing(partial(self._commit, look, affected))
        return None if held is None else self._report(affected, held, dry_run)

    def _look(self, txn: CatalogueTxn) -> _Look:
        """Raises NotFound, Invalid, and InUse while a build that can be resumed is in progress on a ref."""
        seen = changes.look(txn, (BUILD, ERASED))
        ids = [i for i in txn.keys(VERSION) if version_tree.get_node(txn, i).ref in self.refs]
        versions = tuple(version_tree.get_version(txn, version_id) for version_id in ids)
        if lost := sorted(self.refs - {version.ref for version in versions}):
            raise NotFound(f"refs: there is no version of {lost[0]!r}: take refs from the list of refs")
        self.keys = self.keys or _checked_keys(self._ngrams, [version.schema for version in versions])
        running = {}
        for build in txn.keys(BUILD):
            record = version_tree.get_build(txn, build)
            assert record is not None
            running[build] = record
            if record.ref in self.refs and not builds.is_ephemeral(build):
                raise _in_use(build, record)
        return _Look(versions, running, seen)

    def _forget_unless_same(self, look: _Look) -> None:
        """Begin anew if n-grams were erased since the last attempt: what it wrote may hold them."""
        records = {key: raw for key, raw in look.seen.raw.items() if key.startswith(ERASED.encode())}
        if records != self._records:
            promote.discard(self.drafts)
            self.drafts = []
            for written in (self._stands, self._new_keys, self._over):
                written.clear()
            self._records = records

    def _scan(self, look: _Look) -> None:
        """Look for the n-grams in all rows segments, also in rows that newer ones replace. Raises Damaged."""
        rows = look.rows(self.refs, self.keys)
        total, done = sum(info.bytes for info, _ in rows.values()), 0
        for name, (info, schema) in rows.items():
            if name not in self._scanned:
                sought = self.keys[info.order]
                keys = self._environment.segment(info, schema).keys
                found = _is_among(sought, keys)
                kept = ~_is_among(keys, sought[found]) if found.any() else np.ones(len(keys), np.bool_)
                self._scanned[name] = _Scanned(kept, found)
            done += info.bytes
            if self._progress is not None:
                self._progress(done, total)

    def _affected(self, look: _Look) -> _Affected:
        """Raises InUse if a build that can be resumed has, or extends, what is to be replaced."""
        known = look.rows(self.refs, self.keys)
        hit = {name for name in known if self._scanned[name].hit}
        of_versions = {s.name for version in look.versions for s in version.segments} & hit
        found = self._environment.catalogue.read(lambda txn: _with_any(txn, of_versions))
        indexes = {
            info.name: (info, version)
            for version in found
            for info in version.segments
            if info.kind == "index" and not of_versions.isdisjoint(self._covers(info, version))
        }
        ids, ended = {version.id for version in found}, []
        for build, record in look.builds.items():
            gone = of_versions | indexes.keys() | (hit if record.ref in self.refs else set())
            has, extends = not gone.isdisjoint(record.names), record.base in ids
            if (has or extends) and not builds.is_ephemeral(build):
                raise _in_use(build, record)
            # An append that extends them is published on top of what they become.
            if has or (extends and builds.is_compaction(build)):
                ended.append(build)
        rows = {name: known[name] for name in sorted(of_versions)}
        return _Affected(rows, indexes, found, tuple(ended))

    def _covers(self, index: SegmentInfo, version: VersionInfo) -> tuple[str, ...]:
        if index.name not in self._covered:
            opened = self._environment.segment(index, version.schema, whole=False)
            self._covered[index.name] = tuple(opened.covered)
        return self._covered[index.name]

    def _write(self, affected: _Affected) -> None:
        """Write what is to stand for the affected segments, unless an earlier attempt has. Raises Damaged,
        StoreFull, StoreIO.
        """
        drafts = Drafts(self._environment.folder)
        try:
            for name, (info, schema) in affected.rows.items():
                if name not in self._stands:
                    self._stands[name] = self._without(drafts, info, schema)
            for name, (_, version) in affected.indexes.items():
                self._index(drafts, name, version)
            self.drafts += drafts.finish()
        except BaseException:
            drafts.discard()
            raise

    def _without(self, drafts: Drafts, info: SegmentInfo, schema: Schema) -> SegmentInfo | None:
        """Write a rows segment again without the n-grams. Returns None if no row is left."""
        segment = self._environment.segment(info, schema)
        rows = _kept_rows(segment, self._scanned[info.name].kept)
        if not len(rows):
            return None
        new = drafts.add(
            fmt.rows_layout(schema, info.order, len(rows), self._edition), rows.reshape(-1).data, []
        )
        self._new_keys[new.name] = row_keys(rows, info.order)
        return new

    def _index(self, drafts: Drafts, name: str, version: VersionInfo) -> None:
        """Write an index again over what its rows segments are now."""
        by_name = {info.name: info for info in version.segments}
        now = [self._stands.get(covered, by_name[covered]) for covered in self._covered[name]]
        over = last_of_each(info for info in now if info is not None)
        if self._over.get(name) == over:
            return
        keys = [
            self._new_keys[info.name]
            if info.name in self._new_keys
            else self._environment.segment(info, version.schema).keys
            for info in over
        ]
        order = by_name[name].order
        self._stands[name] = write_index(drafts, version.schema, order, over, keys) if over else None
        self._over[name] = over

    def _commit(self, look: _Look, affected: _Affected, txn: CatalogueTxn) -> set[str] | None:
        """Record the erasure. Returns the ids of the versions that readers hold; None: prepare it again."""
        if self._moved(look, affected, txn):
            return None
        held = self._environment.held()
        for build in affected.ended:
            txn.delete(BUILD + build)
        promote.promote(self._environment, txn, self.drafts)
        stands = {name: self._stands[name] for name in (*affected.rows, *affected.indexes)}
        erased.put(txn, stands, self._edition)
        return held

    def _moved(self, look: _Look, affected: _Affected, txn: CatalogueTxn) -> bool:
        """Return whether something recorded since the look concerns the erasure."""
        changed = changes.since(txn, look.seen)
        replaced, ids = self._stands.keys(), {version.id for version in affected.versions}
        for version_id in changed.versions:
            of_ref = version_tree.get_node(txn, version_id).ref in self.refs
            if of_ref or not replaced.isdisjoint(version_tree.segment_names(txn, version_id)):
                return True
        for key in changed.keys:
            if key.startswith(ERASED):
                return True
            record = version_tree.get_build(txn, key.removeprefix(BUILD))
            assert record is not None
            if record.ref in self.refs or record.base in ids or not replaced.isdisjoint(record.names):
                return True
        return False

    def _has_gone(self, look: _Look, affected: _Affected | None, txn: CatalogueTxn) -> bool:
        """Return whether a version or build whose segments were read has ended since, or was erased from."""
        ids = {v.id for v in (*look.versions, *(() if affected is None else affected.versions))}
        keys = [*(VERSION + version_id for version_id in ids), *(BUILD + build for build in look.builds)]
        erasures = any(key.startswith(ERASED) for key in changes.since(txn, look.seen).keys)
        return erasures or not all(txn.has(key) for key in keys)

    def _report(self, affected: _Affected, held: set[str], dry_run: bool) -> EraseReport:
        shown = self._environment.catalogue.read(lambda txn: version_tree.closure(txn, held))
        found = {order: np.zeros(len(keys), np.bool_) for order, keys in self.keys.items()}
        for name, (info, _) in affected.rows.items():
            found[info.order] |= self._scanned[name].found
        replaced = [info for info, _ in (*affected.rows.values(), *affected.indexes.values())]
        return EraseReport(
            dry_run,
            {order: int(each.sum()) for order, each in found.items()},
            tuple(sorted({version.ref for version in affected.versions})),
            tuple(sorted(version.id for version in affected.versions)),
            tuple(sorted(info.name for info in replaced)),
            sum(int((~self._scanned[name].kept).sum()) for name in affected.rows),
            sum(info.bytes for info in replaced),
            tuple(sorted(shown.keys() & {version.id for version in affected.versions})),
        )


def _kept_rows(segment: MappedSegment, kept: Bools) -> Bytes:
    """Copy the kept rows of a segment, with the checks of the current format. Raises Damaged."""
    if segment.layout.format < fmt.FORMAT:
        segment.check_whole()
    rows = segment.rows[kept]
    segment.check(rows)
    return with_checks(segment, rows)


def _is_among(keys: Keys, those: Keys) -> Bools:
    """Return which keys, uint64 [m, words], are among those, uint64 [k, words]: bool [m]."""
    if keys.shape[1] == 1:
        return np.isin(keys[:, 0], those[:, 0])
    pairs = np.dtype([("", np.uint64)] * keys.shape[1])
    one, two = (np.ascontiguousarray(each).view(pairs).reshape(-1) for each in (keys, those))
    return np.isin(one, two)


def _with_any(txn: CatalogueTxn, segments: set[str]) -> tuple[VersionInfo, ...]:
    """Return the versions that have one of these segments, given by name."""
    ids = txn.keys(VERSION) if segments else []
    return tuple(
        version_tree.get_version(txn, version_id)
        for version_id in ids
        if not segments.isdisjoint(version_tree.segment_names(txn, version_id))
    )


def _checked_refs(refs: Iterable[str]) -> frozenset[str]:
    """Raises Invalid."""
    if isinstance(refs, str) or not isinstance(refs, Iterable):
        raise Invalid(f"refs = {refs!r} is not a list of refs: pass [{refs!r}]")
    found = frozenset(names.check_ref(ref) for ref in refs)
    if not found:
        raise Invalid("refs is empty: name the refs whose versions are to lose n-grams")
    return found


def _checked_keys(ngrams: Any, schemas: list[Schema]) -> dict[int, Keys]:
    """Return distinct n-grams as keys, by order. Raises Invalid for what no version of the refs can hold."""
    if not isinstance(ngrams, Mapping):
        raise Invalid(f"ngrams = {ngrams!r} is not a dict of n-grams by order: pass {{3: uint32 [m, 3]}}")
    n, vocab = max(schema.n for schema in schemas), max(schema.vocab for schema in schemas)
    widest = replace(schemas[0], n=n, vocab=vocab)
    found = {}
    for order, given in ngrams.items():
        try:
            checked = check_ngrams(order, given, widest)
        except Invalid as error:
            raise Invalid(f"ngrams: {error}") from error
        keys = pack_keys(checked)
        found[int(order)] = np.unique(keys, axis=0) if len(keys) else np.empty((0, words(order)), np.uint64)
    return found


def _in_use(build: str, record: BuildRecord) -> InUse:
    return InUse(
        f"build {build!r} of {record.ref} is in progress and may bring n-grams back: let it publish, or end "
        f"it with abandon({build!r}); then erase"
    )
