"""Push: a ref's current version with its ancestors goes to a remote, and then the remote's ref moves.
A version that is pushed by its id goes there, too, and no ref moves.

A push puts attachments, then each version's segments, then its manifest. So a manifest that is there has its
segments there. Then it says what was erased from the versions, if anything was. The ref moves last, in one
conditional put, which also says which attachments the version needs. Wherever a push ends, the ref names the
old version or the new one, and all that this version needs is there.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from plot_store.care import attachments
from plot_store.care.attachments import Attachment
from plot_store.catalogue import agreed, erased, version_tree
from plot_store.catalogue.catalogue import CatalogueTxn
from plot_store.catalogue.records import BuildRecord
from plot_store.environment import pins
from plot_store.environment.environment import Environment
from plot_store.ground import names
from plot_store.ground.errors import Conflict, Damaged, Invalid, NotFound, PlotStoreError
from plot_store.ground.files import convert_os_errors
from plot_store.ground.nouns import Progress, SegmentInfo, Transfer, VersionInfo
from plot_store.remote import format as fmt
from plot_store.remote import refs
from plot_store.remote.erasures import Erasing, changed
from plot_store.remote.format import Push, RemoteRef
from plot_store.remote.objects import Objects, threaded

_LEASE_S: Final = 3600.0
_TURNS: Final = 5  # a push begins anew if a collection took it for dead


def push(
    environment: Environment,
    objects: Objects,
    ref: str,
    expect: str | None,
    again: bool,
    attached: Mapping[str, Path],
    progress: Progress | None,
) -> Transfer:
    """See `Store.push`. ref: a ref or a version's id."""
    moves = not names.is_id(ref)
    if attached and not moves:
        raise Invalid(f"files can be attached only to a ref's current version: push {ref} without them")
    listed = attachments.described(attached)
    if moves:
        tip = environment.catalogue.read(lambda txn: version_tree.need_ref(txn, ref)).current
    else:
        tip = ref
        ref = environment.catalogue.read(lambda txn: version_tree.get_version(txn, tip)).ref
    place = refs.make_place(objects)
    with pins.lease(environment, tip, _LEASE_S, "push") as lease:
        chain = environment.catalogue.read(
            lambda txn: version_tree.chain(txn, version_tree.get_version(txn, tip))
        )
        work = _Work(
            environment, objects, ref, place, chain, moves, expect, again, attached, listed, progress, lease
        )
        for _ in range(_TURNS):
            done = work.turn()
            if done is not None:
                if moves:
                    environment.catalogue.write(lambda txn: agreed.put(txn, ref, place, tip))
                return done
    raise Conflict(
        f"collections of {objects.place} took this push of {ref} for dead: collect with a longer age"
    )


def push_build(environment: Environment, objects: Objects, build: str) -> BuildRecord | None:
    """See `Fetching.put_build`."""
    record = environment.catalogue.read(lambda txn: version_tree.get_build(txn, build))
    if record is None:
        return None
    refs.make_place(objects)

    def put(info: SegmentInfo) -> None:
        if objects.size(fmt.segment_name(info)) != info.bytes:
            segment = environment.segment(info, record.schema)
            segment.check_whole()
            objects.put(fmt.segment_name(info), segment.raw.data)

    for _ in threaded(put, record.segments):
        pass
    return replace(record, sealed=None)


@dataclass
class _Work:
    """One push."""

    environment: Environment
    objects: Objects
    ref: str
    place: str
    chain: list[VersionInfo]
    moves: bool  # whether the ref is to be at this version
    expect: str | None
    again: bool
    files: Mapping[str, Path]
    attached: list[Attachment]  # their records
    progress: Progress | None
    lease: pins.Lease

    def turn(self) -> Transfer | None:
        """Try once. Returns None if a collection took the push for dead meanwhile."""
        mark, erasing = Push(uuid.uuid4().hex, time.time()), self._erasing()
        lived = False  # whether the mark was still there at the end

        def begin(found: RemoteRef | None) -> RemoteRef | None:
            return (found or RemoteRef(self.ref)).begun(mark) if self._goes(found, erasing) else None

        def end(found: RemoteRef | None) -> RemoteRef | None:
            nonlocal lived
            lived = found is not None and found.has(mark.push)
            if found is None or not lived:
                return None
            goes = self.moves and self._goes(found, erasing)
            ended = found.moved(self.chain[0].id, mark.push, self.attached) if goes else found
            # A version that this store lacks may have what was erased. It leaves the list, to be collected.
            return ended.without({mark.push}).only(erasing.there if erasing.news else ended.versions)

        try:
            state = refs.change(self.objects, self.ref, begin)
            if state is None or not state.has(mark.push):
                return Transfer(self.chain[0], 0, 0)  # it is there
            refs.check_no_collection(self.objects)
            moved = self._upload(state, erasing)
            self._erasing()  # another store may have erased meanwhile what this push has put
            last = refs.change(self.objects, self.ref, end)
        except BaseException:
            self._unmark(mark)
            raise
        if self.moves:
            lived = last is not None and last.current == self.chain[0].id and not last.has(mark.push)
        return moved if lived else None

    def _erasing(self) -> Erasing:
        """Look at what was erased from what is pushed, and from what this store has of the remote's ref, also
        from older versions that the remote has and its list does not name.

        Raises Conflict if the remote erased what this store has.
        """
        state = refs.read_ref(self.objects, self.ref)
        ids = () if state is None else state.versions

        def look(txn: CatalogueTxn) -> tuple[list[VersionInfo], list[VersionInfo]]:
            return [version for one in ids for version in _known(txn, one)], _erased_of(txn, self.ref)

        known, older = self.environment.catalogue.read(look)
        listed = {version.id for version in (*known, *self.chain)}
        older = [version for version in older if version.id not in listed]
        there = threaded(lambda version: self.objects.size(fmt.version_name(version.id)) is not None, older)
        known += [version for version, is_there in zip(older, there, strict=True) if is_there]
        replaced = None if state is None or self.expect is not None or not self.moves else state.current
        found = Erasing(self.objects, [*self.chain, *known], replaced)
        self.environment.catalogue.read(found.check)
        return found

    def _goes(self, found: RemoteRef | None, erasing: Erasing) -> bool:
        """Return whether the remote's ref is to be changed. Raises Conflict if it must not be."""
        tip, current = self.chain[0].id, None if found is None else found.current
        if not self.moves:
            return not self._has_manifest(self.chain[0]) or bool(erasing.news)
        if found is None or current is None:
            return True
        if current == tip:
            lacks = not set(self.attached) <= set(found.attached.get(tip, ()))
            return self.again or lacks or bool(erasing.news)
        if self.expect is not None:
            allowed = current == self.expect
        else:
            allowed = self.environment.catalogue.read(lambda txn: self._seen(txn, current))
        if not allowed:
            raise Conflict(
                f"{self.ref} at {self.objects.place} is at version {current}, which this store's "
                f"version {tip} does not follow: pull first; or push with expect={current!r} to replace it"
            )
        return True

    def _seen(self, txn: CatalogueTxn, current: str) -> bool:
        """Return whether this store has seen the remote's version before it published its own."""
        last = agreed.get(txn, self.ref, self.place)
        return current == last or current in agreed.since(txn, self.chain[0].id, last)

    def _upload(self, state: RemoteRef, erasing: Erasing) -> Transfer:
        """Put what the remote lacks. Returns what was put."""
        attached, plan = self._lacking(state), self._plan(state, erasing)
        segments = [info for _, infos in plan for info in infos]
        total, done = sum(one.bytes for one in attached) + sum(info.bytes for info in segments), 0
        for size in self._put_all(attached, plan):
            done += size
            self._keep()
            if self.progress is not None:
                self.progress(done, total)
        erasing.put(self.environment)
        return Transfer(self.chain[0], len(segments), done, tuple(one.name for one in attached))

    def _put_all(
        self, attached: list[Attachment], plan: list[tuple[VersionInfo, list[SegmentInfo]]]
    ) -> Iterator[int]:
        """Put everything. Yields the size of each attachment and segment after it was put."""
        yield from map(self._attach, attached)
        for version, infos in plan:
            yield from threaded(partial(self._put, version), infos)
            self.objects.put(fmt.version_name(version.id), memoryview(fmt.dump_version(version)))

    def _lacking(self, state: RemoteRef) -> list[Attachment]:
        """Return the attachments that the remote lacks."""
        if self.again:
            return self.attached
        there = {one.sha256 for listed in state.attached.values() for one in listed}
        unknown = [one for one in self.attached if one.sha256 not in there]
        return [one for one in unknown if self.objects.size(fmt.attachment_name(one)) != one.bytes]

    def _plan(self, state: RemoteRef, erasing: Erasing) -> list[tuple[VersionInfo, list[SegmentInfo]]]:
        """Return the versions that the remote lacks, or from which n-grams were erased since it has them, the
        root first, each with the segments that it lacks."""
        known = [] if self.again else self.environment.catalogue.read(lambda txn: _known(txn, state.current))
        ids, there = {v.id for v in known}, {info.name for v in known for info in v.published}
        plan = []
        older = [version for version in erasing.news if version not in self.chain]
        for version in (*older, *reversed(self.chain)):
            at_remote = erasing.there[version.id]
            if version.id in ids or self._has_manifest(version):
                there |= {info.name for info in at_remote.segments}
                if version not in erasing.news:
                    continue
            wanted = [info for info in version.segments if info.name not in there]
            there |= {info.name for info in wanted}
            present = [False] * len(wanted) if self.again else list(threaded(self._is_there, wanted))
            plan.append(
                (version, [info for info, is_there in zip(wanted, present, strict=True) if not is_there])
            )
        return plan

    def _has_manifest(self, version: VersionInfo) -> bool:
        return not self.again and self.objects.size(fmt.version_name(version.id)) is not None

    def _is_there(self, info: SegmentInfo) -> bool:
        return self.objects.size(fmt.segment_name(info)) == info.bytes

    def _put(self, version: VersionInfo, info: SegmentInfo) -> int:
        try:
            segment = self.environment.segment(info, version.schema)
        except Damaged as error:
            if self.environment.catalogue.read(lambda txn: erased.is_erased(txn, info.name)):
                raise changed(version) from error
            raise
        segment.check_whole()
        self.objects.put(fmt.segment_name(info), segment.raw.data)
        return info.bytes

    def _attach(self, one: Attachment) -> int:
        with convert_os_errors(f"reading the attachment {one.name}"):
            content = self.files[one.name].read_bytes()
        if hashlib.sha256(content).hexdigest() != one.sha256:
            raise Damaged(f"the attachment {one.name} changed while it was read: push it again")
        self.objects.put(fmt.attachment_name(one), memoryview(content))
        return one.bytes

    def _keep(self) -> None:
        """Renew the lease that keeps the version from this store's gc."""
        if self.lease.expires - time.time() < _LEASE_S / 2:
            self.lease.renew()

    def _unmark(self, mark: Push) -> None:
        """Try to remove the mark. If that fails, a collection removes it later."""
        with contextlib.suppress(PlotStoreError):
            refs.change(
                self.objects, self.ref, lambda found: None if found is None else found.without({mark.push})
            )


def _known(txn: CatalogueTxn, current: str | None) -> list[VersionInfo]:
    """Return the remote's current version and its ancestors, if this store has them."""
    try:
        return [] if current is None else version_tree.chain(txn, version_tree.get_version(txn, current))
    except NotFound:
        return []


def _erased_of(txn: CatalogueTxn, ref: str) -> list[VersionInfo]:
    """Return the ref's versions in this store from which n-grams were erased."""
    if not txn.has_any(erased.ERASED):
        return []
    ids = [one for one in txn.keys(version_tree.VERSION) if version_tree.get_node(txn, one).ref == ref]
    return [version for version in (version_tree.get_version(txn, one) for one in ids) if version.erased]
