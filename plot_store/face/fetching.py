"""`Fetching`: readers of a remote's refs and versions. They are pulled when they are first read.

If the store's limits leave no room for a pull, the refs and versions that were used longest ago are removed,
and a collection follows. A ref is removed only if the remote keeps its version and this store has published
nothing since. A version that was pulled by its id is pinned (`pins.FETCHED`); it is removed only if the
remote has it.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

import xxhash

from plot_store.care import gc
from plot_store.care.archive_format import segments_of
from plot_store.care.gc import GcPolicy
from plot_store.catalogue import agreed, tags, version_tree
from plot_store.catalogue import refs as records
from plot_store.catalogue.catalogue import CatalogueTxn
from plot_store.catalogue.records import parse_build, version_fields
from plot_store.catalogue.refs import Dependants
from plot_store.environment import pins
from plot_store.environment.environment import Environment
from plot_store.ground import files, limits, names
from plot_store.ground.errors import Conflict, Invalid, NotFound, PlotStoreError, StoreFull, StoreIO
from plot_store.ground.files import convert_os_errors, folder_bytes
from plot_store.ground.holding import locked
from plot_store.ground.nouns import VersionInfo
from plot_store.reading.backoff import Backoff
from plot_store.reading.reader import Reader, open_reader
from plot_store.remote import format as fmt
from plot_store.remote import refs
from plot_store.remote.objects import Listed, Objects, threaded
from plot_store.remote.pull import follow, pull, pull_build
from plot_store.remote.push import push_build
from plot_store.segments.format import PAGE
from plot_store.writing import publication

_USES_S: Final = 60.0  # uses are written this often; a process that dies forgets those since
_TRIES: Final = 5  # of one reader; a try fails only if the ref is removed right after it came
_SHARE: Final = 16  # a removal frees at least this part of the store, so that collections are rare
_LOCKS: Final = 256
_RECORDS: Final = 1 << 16  # bytes by which a pull's records make the catalogue larger, at most


@dataclass(frozen=True)
class _Idle:
    """A ref, or a version pulled by its id, that this store can fetch again, as far as it knows."""

    name: str  # the ref or the id
    current: str  # id of its version
    used: float  # Unix seconds


class Fetching:
    """Readers of a remote's refs and versions; see `Store.fetching`. Thread-safe."""

    def __init__(self, environment: Callable[[], Environment], objects: Objects, policy: GcPolicy) -> None:
        self._environment = environment
        self._objects = objects
        self._policy = policy
        self._lock = threading.Lock()
        self._coming: dict[str, Future[None]] = {}  # the refs and versions that this process is fetching
        self._uses: dict[str, float] = {}  # Unix seconds by ref or id, not written yet
        self._written = -_USES_S  # when uses were last written, on the monotonic clock
        self._room = threading.Lock()
        self._promised = 0  # bytes that pulls under way may still need
        self._following = threading.Lock()
        self._followed: dict[str, Listed] = {}
        self._changed: set[str] = set()

    def reader(self, ref_or_id: str, backoff: Backoff = "order") -> Reader:
        """Open a reader of a ref's current version, or of the version of an id, as `Store.reader` does. Pull
        it if it is not here.

        A ref that is here is not compared with the remote. Raises what `Store.reader` and `Store.pull` raise.
        """
        ref = ref_or_id if names.is_id(ref_or_id) else names.check_ref(ref_or_id)
        for _ in range(_TRIES):
            try:
                opened = open_reader(self._environment(), ref, backoff)
            except NotFound:  # or another process has just removed it
                self._fetch(ref)
            else:
                self._note(ref)
                return opened
        raise StoreFull(
            f"{ref} was removed each time that it had been fetched: raise max_bytes, so that the refs in use "
            "fit into the store"
        )

    def publish(self, version_id: str) -> VersionInfo:
        """Pull a version that another store's build has left apart, and make it the current one of its ref.

        A second call returns the version. Raises Conflict unless the ref is where the build found it; and
        what `Store.pull` raises.
        """
        if not names.is_id(version_id):
            raise Invalid(f"{version_id!r} is not a version's id: take the one that the build published")
        environment = self._environment()
        pull(environment, self._objects, version_id, False, None, None)

        def body(txn: CatalogueTxn) -> VersionInfo:
            version = version_tree.get_version(txn, version_id)
            record = version_tree.get_ref(txn, version.ref)
            pins.unpin(txn, version_id, pins.FETCHED)  # its ref keeps it; a refusal undoes this
            if record is not None and version_id in record.versions:
                return version
            current = None if record is None else record.current
            if current != version.previous:
                raise Conflict(
                    f"{version.ref} is at {current}, and {version_id} was built to follow "
                    f"{version.previous}: build it again"
                )
            publication.move_ref(txn, version)
            return version

        return environment.catalogue.write(body)

    def put_build(self, build: str) -> dict[str, Any] | None:
        """Put what an unfinished build has finished into the remote, for `take_build` at another store.

        Returns what that needs, as JSON; None if there is no such build. A collection of the remote removes
        the segments once they are old enough. Raises Damaged, StoreIO.
        """
        found = push_build(self._environment(), self._objects, names.check_build(build))
        return None if found is None else json.loads(json.dumps(version_fields(found), default=asdict))

    def take_build(self, build: str, stored: Mapping[str, Any]) -> None:
        """Go on with another store's build: a writer of the same arguments then has its finished segments.

        The versions that it builds on must be here. What this store had of the build goes. Raises Damaged
        (the remote lacks a segment, or `stored` is malformed), StoreFull, StoreIO.
        """
        pull_build(self._environment(), self._objects, names.check_build(build), parse_build(stored))

    def follow_erasures(self) -> set[str]:
        """Erase from the versions of this store what the remote erased from them. It takes one listing if
        there is nothing new.

        Returns the ids of the versions that changed since the last call, and of those that fall back on them:
        open readers of them show the n-grams until they close. Raises Conflict (another version here has what
        was erased), NotFound (no remote), Damaged, FormatTooNew, StoreFull, StoreIO.
        """
        self._follow()
        with self._following:
            changed, self._changed = self._changed, set()
        return changed

    def release(self, keep: Collection[str]) -> int:
        """Let go of all versions pulled by their ids but those in `keep`. `Store.gc` frees their bytes.

        Returns their number.
        """

        def left(txn: CatalogueTxn) -> list[str]:
            every = (pin.version for pin in pins.pins(txn) if pin.owner == pins.FETCHED)
            return [version for version in every if version not in keep]

        def body(txn: CatalogueTxn) -> int:
            return sum(pins.unpin(txn, version, pins.FETCHED) for version in left(txn))

        environment = self._environment()
        return environment.write_freeing(body) if environment.catalogue.read(left) else 0

    def _follow(self) -> None:
        with self._following:
            refs.need_place(self._objects)
            self._changed |= follow(self._environment(), self._objects, self._followed)

    def _note(self, ref: str) -> None:
        """Note the use of a ref or version."""
        with self._lock:
            self._uses[ref] = time.time()
            due = time.monotonic() - self._written >= _USES_S
        if due:
            # It decides only what is removed first.
            with contextlib.suppress(StoreIO):
                self._write_uses()

    def _write_uses(self) -> None:
        with self._lock:
            uses, self._uses = self._uses, {}
            self._written = time.monotonic()

        def write(txn: CatalogueTxn) -> None:
            for ref, at in uses.items():
                if not names.is_id(ref):
                    agreed.use(txn, ref, at)
                elif pins.is_fetched(txn, ref):
                    pins.keep_fetched(txn, ref, at)

        if uses:
            self._environment().write_freeing(write)

    def _fetch(self, ref: str) -> None:
        """Pull a ref or version, or wait for the thread that does. Raises what the pull raises."""
        with self._lock:
            coming = self._coming.get(ref)
            if coming is None:
                mine = self._coming[ref] = Future[None]()
        if coming is not None:
            coming.result()
            return
        try:
            self._fetch_alone(ref)
        except PlotStoreError as error:
            mine.set_exception(error)
            raise
        except BaseException:
            mine.set_exception(StoreIO(f"the thread that fetched {ref} was stopped: open the reader again"))
            raise
        else:
            mine.set_result(None)
        finally:
            with self._lock:
                del self._coming[ref]

    def _fetch_alone(self, ref: str) -> None:
        """Pull a ref or version while no other process does. One process brings what many fall back on."""
        environment, root = self._environment(), ref.partition("/")[0]
        if names.is_id(ref):
            parent = refs.need_version(self._objects, ref).parent
            if parent is not None and not self._has(parent):
                self._fetch(parent)
            root = ref
        folder = environment.path / "fetching"
        with convert_os_errors(f"creating {folder}"):
            files.make_folder(folder)
        while True:
            key = ref if self._has(root) else root
            with locked(folder / f"{xxhash.xxh3_64_intdigest(key.encode()) % _LOCKS:02x}"):
                if self._has(ref):
                    return
                if key == ref or not self._has(root):
                    self._pull(environment, ref)
                    return

    def _has(self, ref: str) -> bool:
        kind = version_tree.VERSION if names.is_id(ref) else version_tree.REF
        return self._environment().catalogue.read(lambda txn: txn.has(kind + ref))

    def _pull(self, environment: Environment, ref: str) -> None:
        promised = 0

        def accept(versions: list[VersionInfo], _: Mapping[str, Callable[[], bytes]]) -> None:
            nonlocal promised
            with self._room:
                self._promised -= promised
                promised = 0
                need = self._make_room(environment, versions)
                self._promised += need
                promised = need

        try:
            try:
                pull(environment, self._objects, ref, False, accept, None)
            except Conflict:
                if not names.is_id(ref):
                    raise
                self._follow()  # another version here has what was erased from this one
                pull(environment, self._objects, ref, False, accept, None)
        finally:
            with self._room:
                self._promised -= promised

    def _make_room(self, environment: Environment, versions: list[VersionInfo]) -> int:
        """Remove refs until the segments that these versions lack fit. Returns their bytes.

        Raises StoreFull if the refs that may be removed are too few.
        """
        while True:
            # A removal may take segments that these versions share with the ref that goes.
            need = environment.catalogue.read(lambda txn: _missing(txn, environment, versions))
            short = limits.shortage(environment.path, environment.limits, self._promised + need)
            if not short:
                return need
            if not self._remove_some(environment, short + folder_bytes(environment.folder) // _SHARE):
                environment.check_room(self._promised + need, f"fetching {versions[0].ref}")

    def _remove_some(self, environment: Environment, goal: int) -> bool:
        """Remove the refs used longest ago, with `goal` bytes or more. Returns whether one went."""
        self._write_uses()
        place = refs.need_place(self._objects)

        def look(txn: CatalogueTxn) -> tuple[int, list[_Idle]]:
            return txn.commit, _idle(txn, environment, place)

        commit, idle = environment.catalogue.read(look)
        chosen, size = list[_Idle](), 0
        for one, is_there in zip(idle, threaded(self._is_there, idle), strict=True):
            if is_there:
                chosen.append(one)
                size += environment.catalogue.read(partial(_bytes, one.current))
            if size >= goal:
                break

        def remove(txn: CatalogueTxn) -> int:
            still = idle if txn.commit == commit else _idle(txn, environment, place)
            known = {(one.name, one.current) for one in still}
            left = [one for one in chosen if (one.name, one.current) in known]
            for one in left:
                if names.is_id(one.name):
                    pins.unpin(txn, one.name, pins.FETCHED)
                else:
                    records.delete(txn, one.name, Dependants(txn.commit, {}, frozenset()), anew=False)
            return len(left)

        if not environment.write_freeing(remove):
            return False
        gc.collect(environment, self._policy, dry_run=False)
        return True

    def _is_there(self, one: _Idle) -> bool:
        """Return whether the remote's collections keep the version of a ref, or the remote has a version."""
        if names.is_id(one.name):
            return self._objects.size(fmt.version_name(one.name)) is not None
        found = refs.read_ref(self._objects, one.name)
        return found is not None and one.current in found.versions


def _missing(txn: CatalogueTxn, environment: Environment, versions: list[VersionInfo]) -> int:
    """Return the bytes on disk of the segments that the store lacks of these versions, and of records."""
    lacking = [info for info, _ in segments_of(versions) if not environment.holds(txn, info)]
    return sum(info.bytes + -info.bytes % PAGE for info in lacking) + _RECORDS


def _bytes(version_id: str, txn: CatalogueTxn) -> int:
    try:
        return version_tree.get_version(txn, version_id).bytes
    except NotFound:  # another process has removed it meanwhile
        return 0


def _idle(txn: CatalogueTxn, environment: Environment, place: str) -> list[_Idle]:
    """Return the refs that agree with the remote, and the versions pulled by their ids, that nobody holds,
    used longest ago first.

    No ref and no such version falls back on them, no tag, pin, lease or reader of this process keeps a
    version of them, and no build is on them.
    """
    heads, every = records.heads(txn), pins.pins(txn)
    fetched = {pin.version: pin.since for pin in every if pin.owner == pins.FETCHED}
    nodes = version_tree.closure(txn, [*heads.values(), *fetched])
    parents = {node.parent for node in nodes.values() if node.parent is not None}
    below = {nodes[parent].ref for parent in parents}
    held = environment.held() | set(tags.listed(txn).values())
    held |= {pin.version for pin in every if pin.owner != pins.FETCHED}
    held |= {lease.version for lease in pins.leases(txn, time.time())}
    for build in txn.keys(version_tree.BUILD):
        record = version_tree.get_build(txn, build)
        assert record is not None
        below.add(record.ref)
        held |= {one for one in (record.parent, record.base) if one is not None}
    found = [_Idle(one, one, since) for one, since in fetched.items() if one not in held | parents]
    for ref, current in heads.items():
        if ref in below or agreed.get(txn, ref, place) != current:
            continue
        versions = version_tree.need_ref(txn, ref).versions
        if versions[0] == current and held.isdisjoint(versions):
            found.append(_Idle(ref, current, agreed.last_use(txn, ref, place)))
    return sorted(found, key=lambda one: one.used)
