"""Pull: a store imports a remote's version of a ref, or a version by its id, with its ancestors.

A pull fetches only what the store lacks, and compares it with the hash in its name. It publishes nothing
before all of it is there. A pull that ends early changes nothing, and what it fetched is lost.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple

from plot_store.care.archive_format import Stands, check_chain, segments_of
from plot_store.care.attachments import Attachment
from plot_store.care.incoming import bring_build, bring_in
from plot_store.catalogue import agreed, version_tree
from plot_store.catalogue.catalogue import CatalogueTxn
from plot_store.catalogue.records import BuildRecord
from plot_store.catalogue.version_tree import MAX_DEPTH
from plot_store.environment import pins
from plot_store.environment.environment import Environment
from plot_store.ground import names
from plot_store.ground.errors import Conflict, Damaged, NotFound
from plot_store.ground.nouns import Accept, Progress, SegmentInfo, Transfer, VersionInfo
from plot_store.remote import erasures, refs
from plot_store.remote import format as fmt
from plot_store.remote.format import RemoteRef
from plot_store.remote.objects import Listed, Objects, threaded

_PIECE: Final = 8 << 20
_PIECES_AT_ONCE: Final = 4  # pieces that are fetched at a time, and pieces in memory
_TURNS: Final = 3  # a pull begins anew if the remote's ref moved and a collection removed what it needed


def pull(
    environment: Environment,
    objects: Objects,
    wanted: str,
    again: bool,
    accept: Accept | None,
    progress: Progress | None,
) -> Transfer:
    """See `Store.pull`. wanted: a ref or a version's id."""
    by_id = names.is_id(wanted)
    if not by_id:
        names.check_ref(wanted)
    place = refs.need_place(objects)
    state = _state(objects, wanted)
    for _ in range(_TURNS):
        try:
            return _pull(environment, objects, place, state, again, accept, progress, by_id)
        except Damaged:
            later = _state(objects, wanted)
            if later.current == state.current:
                raise
            state = later
    raise Conflict(f"{wanted} at {objects.place} moves faster than it can be pulled: pull again later")


def pull_build(environment: Environment, objects: Objects, build: str, record: BuildRecord) -> None:
    """See `Fetching.take_build`."""
    tip = VersionInfo("", record.ref, record.parent, None, "", record.schema, record.segments, build)
    source = _source(environment, objects, [tip])
    try:
        bring_build(environment, build, record, source)
    finally:
        source.close()


def follow(environment: Environment, objects: Objects, seen: dict[str, Listed]) -> set[str]:
    """See `Fetching.follow_erasures`. seen: what earlier calls compared, by version; the call adds to it.

    Returns the ids of the versions that changed, and of those that fall back on them.
    """
    listed = {one.name.rpartition("/")[2].removesuffix(".json"): one for one in objects.listed(fmt.ERASED)}
    news = frozenset(version_id for version_id, one in listed.items() if seen.get(version_id) != one)
    mine = environment.catalogue.read(lambda txn: [v for one in news for v in _own(one, txn)])
    there = list(threaded(partial(erasures.applied, objects, news), mine))
    late = environment.catalogue.read(lambda txn: [erasures.is_news(txn, version) for version, _ in there])
    versions = [version for (version, _), is_late in zip(there, late, strict=True) if is_late]
    if versions:
        stands = _merged([some for _, some in there])
        trusted = [version for version, is_late in zip(mine, late, strict=True) if is_late]
        source = _source(environment, objects, versions)
        try:
            bring_in(environment, versions, source, lambda txn: True, None, trusted, stands)
        finally:
            source.close()
    seen |= {version.id: listed[version.id] for version in mine}
    changed = {version.id for version in versions}

    def above(txn: CatalogueTxn) -> set[str]:
        every = txn.keys(version_tree.VERSION) if changed else ()
        return {one for one in every if changed & version_tree.closure(txn, [one]).keys()}

    return environment.catalogue.read(above)


def _merged(every: list[Stands]) -> Stands:
    """Return what stands for segments by all these lists. Of two erasures the later one left fewer rows.

    Raises Damaged if they contradict each other.
    """
    found: dict[str, SegmentInfo | None] = {}
    for name, now in (one for some in every for one in some.items()):
        before = found.setdefault(name, now)
        if before is not None and (now is None or now.count < before.count):
            found[name] = now
    if any(now is not None and now.name in found for now in found.values()):
        raise Damaged(f"the lists of erased segments contradict each other: {fmt.CURE}")
    return found


def _state(objects: Objects, wanted: str) -> RemoteRef:
    """Return a ref of the remote; for a version's id one that is at this version. Raises NotFound."""
    if not names.is_id(wanted):
        return refs.need_ref(objects, wanted)
    return RemoteRef(refs.need_version(objects, wanted).ref, wanted)


def _pull(
    environment: Environment,
    objects: Objects,
    place: str,
    state: RemoteRef,
    again: bool,
    accept: Accept | None,
    progress: Progress | None,
    by_id: bool,
) -> Transfer:
    ref, current = state.ref, state.current
    assert current is not None  # `need_ref` refuses the others

    def present(txn: CatalogueTxn) -> bool:
        if by_id:
            return pins.is_fetched(txn, current) and bool(_own(current, txn))
        return _is_present(txn, state, place, objects.place)

    def keep(txn: CatalogueTxn, _: list[VersionInfo]) -> None:
        pins.keep_fetched(txn, current, time.time())

    def ahead(txn: CatalogueTxn) -> VersionInfo | None:
        mine = version_tree.resolve(txn, ref) if not by_id and present(txn) else None
        return None if mine is None or mine.id == current else mine

    if (mine := environment.catalogue.read(ahead)) is not None:
        return Transfer(mine, 0, 0)
    versions, own, stands = _chain(environment, objects, current)
    if versions[0].ref != ref:
        raise Damaged(f"the ref {ref} at {objects.place} names a version of {versions[0].ref}: {fmt.CURE}")
    trusted = [] if again else [*own, *environment.catalogue.read(lambda txn: _local(txn, ref))]
    source = _source(environment, objects, versions)
    attached = state.attached.get(current, ()) if accept is not None else ()
    before = sum(one.bytes for one in attached)
    total = before + sum(info.bytes for info, _ in segments_of(versions))

    def shown(done: int, _: int = 0) -> None:
        if progress is not None:
            progress(before + done, total)

    def fetched(one: Attachment) -> bytes:
        content = source.attachment(one)
        shown(source.bytes - before)
        return content

    if accept is not None:
        accept(versions, {one.name: partial(fetched, one) for one in attached})
    new = environment.catalogue.read(lambda txn: _without_ref(txn, versions))
    try:
        brought = bring_in(
            environment, versions, source, present, shown, trusted, stands, keep if by_id else None
        )
    finally:
        source.close()
    if not by_id:
        environment.catalogue.write(lambda txn: _agree(txn, place, new))
    return Transfer(brought, source.segments, source.bytes, tuple(source.attachments))


def _is_present(txn: CatalogueTxn, state: RemoteRef, place: str, at: str) -> bool:
    """Return whether this store has the remote's version, or is ahead of it.

    Raises Conflict if both have moved since they last agreed.
    """
    record = version_tree.get_ref(txn, state.ref)
    if record is None:
        return False
    if record.current == state.current:
        return True
    last = agreed.get(txn, state.ref, place)
    if record.current == last:
        return False
    if state.current == last:
        return True
    if record.current in state.versions and last in (None, *agreed.since(txn, record.current, None)):
        return False  # ours was pushed, and the push did not live to record it, or another store did it
    if state.current in agreed.since(txn, record.current, last):
        return True
    raise Conflict(
        f"{state.ref} is at version {record.current} here and at version {state.current} at {at}, "
        f"and neither follows the other: push yours with expect={state.current!r}; or delete the ref here, "
        "or roll it back to a version that was pulled, then pull again"
    )


def _without_ref(txn: CatalogueTxn, versions: list[VersionInfo]) -> list[VersionInfo]:
    """Return the first version, and the ancestors whose refs this store lacks. The pull makes these."""
    return [
        version
        for version in versions
        if version is versions[0] or version_tree.get_ref(txn, version.ref) is None
    ]


def _agree(txn: CatalogueTxn, place: str, versions: list[VersionInfo]) -> None:
    for version in versions:
        record = version_tree.get_ref(txn, version.ref)
        if record is not None and (version is versions[0] or record.current == version.id):
            agreed.put(txn, version.ref, place, version.id)


def _source(environment: Environment, objects: Objects, versions: list[VersionInfo]) -> _Source:
    """Return a source that fetches ahead the segments of these versions that the store lacks."""

    def lacking(txn: CatalogueTxn) -> list[tuple[str, int]]:
        every = [info for info, _ in segments_of(versions)]
        return [(info.name, info.bytes) for info in every if not environment.holds(txn, info)]

    return _Source(objects, environment.catalogue.read(lacking))


def _local(txn: CatalogueTxn, ref: str) -> list[VersionInfo]:
    """Return the ref's current version in this store, if any. The remote's may share segments with it."""
    record = version_tree.get_ref(txn, ref)
    return [] if record is None else [version_tree.get_version(txn, record.current)]


def _chain(
    environment: Environment, objects: Objects, version_id: str
) -> tuple[list[VersionInfo], list[VersionInfo], Stands]:
    """Return a version with its ancestors, nearest first; those of them that this store has, as it has them;
    and what stands for segments at the remote."""
    found: list[VersionInfo] = []
    had: list[VersionInfo] = []
    changed, stands = erasures.listed(objects), dict[str, SegmentInfo | None]()
    wanted: str | None = version_id
    while wanted is not None and len(found) < MAX_DEPTH:
        mine = environment.catalogue.read(partial(_own, wanted))
        had += mine
        version, more = erasures.applied(
            objects, changed, mine[0] if mine else refs.read_version(objects, wanted)
        )
        found.append(version)
        stands |= more
        wanted = version.parent
    check_chain(found, fmt.CURE)
    return found, had, stands


def _own(version_id: str, txn: CatalogueTxn) -> list[VersionInfo]:
    """Return a version if this store has it."""
    try:
        return [version_tree.get_version(txn, version_id)]
    except NotFound:
        return []


class _Piece(NamedTuple):
    """A part of an object."""

    name: str
    start: int
    size: int


def _cut(name: str, size: int) -> Iterator[_Piece]:
    for start in range(0, size, _PIECE):
        yield _Piece(name, start, min(_PIECE, size - start))


class _Source:
    """See `incoming.Source`. It counts what it fetched.

    lacking: names and sizes of the segments that will be asked for, in this order. Some threads fetch pieces
    of them ahead. Others may be asked for, too, and some of these left out.
    """

    def __init__(self, objects: Objects, lacking: list[tuple[str, int]]) -> None:
        self.cure = f"at {objects.place}, {fmt.CURE}"
        self.segments = 0
        self.bytes = 0
        self.attachments: list[str] = []
        self._objects = objects
        wholes = [(f"{fmt.SEGMENTS}/{name}", size) for name, size in lacking]
        self._planned = {whole for whole, _ in wholes}
        self._left = deque(piece for whole, size in wholes for piece in _cut(whole, size))
        self._coming: deque[tuple[_Piece, Future[bytes | None]]] = deque()
        self._pool = ThreadPoolExecutor(_PIECES_AT_ONCE)

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)

    def attachment(self, one: Attachment) -> bytes:
        """Fetch an attachment. Raises Damaged, StoreIO."""
        content = b"".join(self._pieces(fmt.attachment_name(one), one.bytes))
        if hashlib.sha256(content).hexdigest() != one.sha256:
            raise Damaged(
                f"the object {fmt.attachment_name(one)} does not match the hash in its name: {self.cure}"
            )
        self.attachments.append(one.name)
        return content

    def chunks(self, name: str, size: int) -> Iterator[bytes]:
        self.segments += 1
        return self._pieces(f"{fmt.SEGMENTS}/{name}", size)

    def _pieces(self, whole: str, size: int) -> Iterator[bytes]:
        for piece in _cut(whole, size):
            found = self._ahead(piece) if whole in self._planned else self._objects.read(*piece)
            if found is None:
                raise refs.missing(self._objects, whole)
            if len(found) != piece.size:
                raise Damaged(f"the object {whole} ends too early at {self._objects.place}: {fmt.CURE}")
            self.bytes += len(found)
            yield found

    def _ahead(self, wanted: _Piece) -> bytes | None:
        """Return a piece, and let the threads fetch those after it."""
        while True:
            while self._left and len(self._coming) < _PIECES_AT_ONCE:
                piece = self._left.popleft()
                self._coming.append((piece, self._pool.submit(self._objects.read, *piece)))
            piece, coming = self._coming.popleft()
            if piece == wanted:
                return coming.result()
            coming.cancel()  # the store has got it meanwhile

    def skipped(self, name: str, size: int) -> Iterator[bytes]:
        return iter(())

    def tail(self) -> None:
        """Nothing follows."""
