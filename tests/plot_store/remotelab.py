"""Shared by the tests of remotes: a place that fails or dies at a call, and whether a remote is whole."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import xxhash

from plot_store import Store, StoreIO, Transfer, VersionInfo
from plot_store.ground.nouns import Accept
from plot_store.remote import collect, erasures, format, refs
from plot_store.remote import pull as pulling
from plot_store.remote import push as pushing
from plot_store.remote.objects import Listed, Objects

WRITES = ("put", "swap", "remove")


class Place:
    """A place whose calls are counted. At the call `at`, counted from 1, `how` says what goes wrong:

    before: the call fails and nothing was done; half: it fails, and half of a removal was done; after: it
    fails, and was done; late: it fails, and is done when `arrive` is called; twice: it is done twice, as by
    a library that tries again; kill, killed: the process dies before it or after it.
    """

    def __init__(self, inner: Objects, at: int = 0, how: str = "") -> None:
        self.inner, self.place, self.at, self.how = inner, inner.place, at, how
        self.calls: list[str] = []
        self.sent = self.received = 0
        self._late: list[Callable[[], Any]] = []
        self._lock = threading.Lock()

    def arrive(self) -> None:
        """Do what came too late."""
        for late in self._late:
            late()

    def get(self, name: str) -> tuple[bytes, str] | None:
        found = self._call("get", self.inner.get, name)
        self.received += len(found[0]) if found else 0
        return found

    def read(self, name: str, start: int, size: int) -> bytes | None:
        found = self._call("read", self.inner.read, name, start, size)
        self.received += len(found or b"")
        return found

    def size(self, name: str) -> int | None:
        return self._call("size", self.inner.size, name)

    def put(self, name: str, data: memoryview) -> None:
        self.sent += data.nbytes
        self._call("put", self.inner.put, name, data)

    def swap(self, name: str, data: bytes, tag: str | None) -> bool:
        self.sent += len(data)
        return self._call("swap", self.inner.swap, name, data, tag)

    def listed(self, below: str) -> Iterator[Listed]:
        yield from self._call("listed", lambda below: list(self.inner.listed(below)), below)

    def remove(self, names: Iterable[str]) -> None:
        self._call("remove", self.inner.remove, list(names))

    def _call(self, kind: str, body: Callable[..., Any], *given: Any) -> Any:
        with self._lock:
            self.calls.append(kind)
            now = len(self.calls) == self.at
        if now and self.how == "half" and kind == "remove":
            body(given[0][: len(given[0]) // 2])
        if now and self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if now and self.how in ("before", "late", "half"):
            if self.how == "late" and kind in WRITES:
                self._late.append(lambda: body(*given))
            raise StoreIO(f"{kind} failed before it was done: try again")
        found = body(*given)
        if now and self.how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if now and self.how == "after":
            raise StoreIO(f"{kind} failed after it was done: try again")
        if now and self.how == "twice":
            return body(*given)
        return found


def push(store: Store, place: Objects, ref: str, attached: Mapping[str, Path] | None = None) -> Transfer:
    """As `Store.push`, to this place."""
    return pushing.push(store._env(), place, ref, None, False, attached or {}, None)


def pull(store: Store, place: Objects, ref: str, accept: Accept | None = None) -> Transfer:
    """As `Store.pull`, from this place."""
    return pulling.pull(store._env(), place, ref, False, accept, None)


def files(folder: Path, *seeds: int) -> dict[str, Path]:
    """Files to attach, by name. The seed is in the name and decides the content."""
    found = {}
    for seed in seeds:
        found[f"file-{seed}"] = path = folder / f"file-{seed}"
        path.write_bytes(content(seed))
    return found


def content(seed: int) -> bytes:
    return random.Random(seed).randbytes(3000)


class Shelf(dict[str, bytes]):
    """What pulls handed over. As `accept`, it takes what it lacks."""

    def __call__(self, versions: list[VersionInfo], attached: Mapping[str, Callable[[], bytes]]) -> None:
        for name, fetch in attached.items():
            if name not in self:
                self[name] = fetch()

    def sound(self) -> bool:
        return all(found == content(int(name.removeprefix("file-"))) for name, found in self.items())


def whole(objects: Objects) -> dict[str, str]:
    """Assert that all that refs need is there and right, and that no manifest lacks a segment.

    Returns each ref's current version.
    """
    found: dict[str, str] = {}
    needed: dict[str, VersionInfo] = {}
    for ref in collect.all_refs(objects):
        needed |= collect._closure(objects, ref.versions)
        if ref.current is not None:
            assert refs.read_version(objects, ref.current).ref == ref.ref
            found[ref.ref] = ref.current
    for listed in objects.listed(format.VERSIONS):
        if not listed.name.endswith(".tmp"):
            version_id = collect._id(listed.name)
            if version_id not in needed:
                version = refs.read_version(objects, version_id)
                needed[version_id], _ = erasures.applied(objects, erasures.listed(objects), version)
    names = {format.segment_name(i): i.bytes for version in needed.values() for i in version.segments}
    for ref in collect.all_refs(objects):
        for one in (one for listed in ref.attached.values() for one in listed):
            data = objects.read(format.attachment_name(one), 0, one.bytes + 1)
            assert data is not None, one
            assert hashlib.sha256(data).hexdigest() == one.sha256, one
    for name, size in names.items():
        data = objects.read(name, 0, size + 1)
        assert data is not None, name
        assert len(data) == size, name
        assert xxhash.xxh3_128_hexdigest(data) in name
    return found
