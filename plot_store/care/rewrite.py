"""Removing dead bytes from the store's files: what no record needs, also beside what is needed.

A collection leaves a shared file as it is while one of its segments is needed. After an erasure that is not
enough. So files that hold dead segments are written again with the live ones alone. Bytes are never changed
in place: open readers keep the old files mapped.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from typing import BinaryIO, Final

import numpy as np
import xxhash
from hmi_kernels.lookup.layout import Keys

from plot_store.catalogue import places, version_tree
from plot_store.catalogue.catalogue import CatalogueTxn
from plot_store.environment.environment import Environment
from plot_store.ground import names
from plot_store.ground.errors import Damaged
from plot_store.ground.files import TEMPORARY, convert_os_errors
from plot_store.ground.nouns import Kind, Place, SegmentInfo
from plot_store.segments import format as fmt
from plot_store.segments.drafts import Drafts
from plot_store.writing import promote

ORPHAN_AGE_S: Final = 3600.0  # an older temporary file is not being written any more, as for `Store.gc`
_TURNS: Final = 4  # a file is looked at again if a collection or publication changed what lies there
Live = list[tuple[str, int]]  # the segments that are needed in a file, and where each begins


def remove_dead(environment: Environment, keys: Mapping[int, Keys]) -> list[str]:
    """Remove all bytes that no record needs. Returns the files that stay and may hold these n-grams, and why.

    keys: by order, uint64 [m, words]. Only temporary files are searched for them: builds that run write
    these. Raises StoreIO, StoreFull, Damaged (the catalogue).
    """
    _sweep(environment)
    why: dict[str, str] = {}
    for _ in range(_TURNS):
        todo = environment.catalogue.read(_with_dead)
        if not todo.keys() - why.keys():
            break
        for file, live in todo.items():
            if file not in why and (reason := _copy_live(environment, file, live)) is not None:
                why[file] = reason
        promote.sweep(environment, (), sorted(todo))
    else:
        late = environment.catalogue.read(_with_dead).keys() - why.keys()
        why |= dict.fromkeys(late, "others publish and collect what lies there: erase again when they rest")
    for name in _temporary(environment):
        if _may_hold(environment, name, keys):
            why[name] = "a build writes it, or died: it goes with the build, or by a gc after an hour"
    return [f"{name}: {reason}" for name, reason in sorted(why.items())]


def _temporary(environment: Environment) -> dict[str, float]:
    """Return the seconds since the last change of each temporary file of segments, by name."""
    found, now = dict[str, float](), time.time()
    with os.scandir(environment.folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                if entry.name.endswith(TEMPORARY):
                    found[entry.name] = now - entry.stat().st_mtime
    return found


def _sweep(environment: Environment) -> None:
    """Remove dead segments with their places, files that hold nothing else, and old temporary files.

    A file gets its name in the transaction that records it. So one without a record is dead at any age.
    """

    def find(txn: CatalogueTxn) -> tuple[set[str], set[str]]:
        shared = txn.keys(places.FILE)
        written = {str(name) for file in shared for name in txn.get(places.FILE + file) or ()}
        return written.union(txn.keys(places.PLACE)) - version_tree.named_segments(txn), set(shared)

    old = [name for name, age in _temporary(environment).items() if age >= ORPHAN_AGE_S]
    files = {name for name in os.listdir(environment.folder) if names.is_file(name)}
    dead, shared = environment.catalogue.read(find)  # a shared file may be gone, after a crash
    promote.sweep(environment, sorted(dead), sorted(files.union(shared, old)))


def _with_dead(txn: CatalogueTxn) -> dict[str, Live]:
    """Return the shared files that hold a dead segment, and what is needed of each."""
    named, found = version_tree.named_segments(txn), dict[str, Live]()
    for file in txn.keys(places.FILE):
        written = [str(name) for name in txn.get(places.FILE + file) or ()]
        if not named.issuperset(written):
            there = [(name, places.find(txn, name)) for name in written if name in named]
            found[file] = [(name, place.at) for name, place in there if place.file == file]
    return found


def _copy_live(environment: Environment, file: str, live: Live) -> str | None:
    """Copy what is needed of a file to a new one, and move its place there. Returns why that is impossible.

    The old file is not removed.
    """

    def move(txn: CatalogueTxn) -> None:
        if all(places.find(txn, name) == Place(file, at) for name, at in live):
            promote.promote(environment, txn, drafts.finish())

    drafts = Drafts(environment.folder)
    try:
        with convert_os_errors(f"copying segments of {file}"), contextlib.suppress(FileNotFoundError):
            with open(environment.folder / file, "rb") as source:
                for name, at in live:
                    _copy(source, name, at, drafts)
            drafts.finish()  # before the transaction, which shall be short
            environment.write_freeing(move)
    except Damaged as error:
        return f"{error}; then erase again"
    finally:
        drafts.discard()
    return None


def _copy(source: BinaryIO, name: str, at: int, drafts: Drafts) -> None:
    """Add a segment of an open file to the drafts. Raises Damaged unless it matches the hash in its name."""
    source.seek(at)
    header = fmt.parse(source.read(fmt.HEADER_BYTES), name)
    kind: Kind = "rows" if header.kind == fmt.ROWS else "index"
    info = SegmentInfo(name, kind, header.order, header.count, header.file_bytes)
    whole = xxhash.xxh3_128()

    def chunks() -> Iterator[bytes]:
        source.seek(at)
        for start in range(0, info.bytes, fmt.BLOCK):
            chunk = source.read(min(fmt.BLOCK, info.bytes - start))
            whole.update(chunk)
            yield chunk

    drafts.copy(info, chunks())
    if whole.hexdigest() != info.digest:
        raise Damaged(
            f"segment {name} is damaged: restore it with an import of an export, or build the version again"
        )


def _may_hold(environment: Environment, name: str, keys: Mapping[int, Keys]) -> bool:
    """Return whether a temporary file has a word that may begin one of these n-grams' rows."""
    try:
        words = np.fromfile(environment.folder / name, "<u8")
    except FileNotFoundError:
        return False
    return any(bool(np.isin(words, of_order[:, 0]).any()) for of_order in keys.values())
