"""Renaming finished files of segments and unlinking dead ones, both in write transactions of the catalogue.

So LMDB's writer lock makes the two exclude each other across processes. The transaction that renames a file
also registers its segments. The transaction that unlinks a file has made sure that no record names a segment
that lies there. A crash may remove the file and keep a record of where a segment lay. That is harmless:
nothing names the segment, and the next collection removes the record.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from plot_store.catalogue import changes, erased, places, version_tree
from plot_store.catalogue.catalogue import CatalogueTxn
from plot_store.catalogue.changes import Seen
from plot_store.database.database import give_way
from plot_store.environment.environment import Environment
from plot_store.ground import files, names
from plot_store.ground.errors import StoreIO
from plot_store.ground.files import convert_os_errors, remove
from plot_store.segments.drafts import Draft


@dataclass(frozen=True)
class Swept:
    """What a sweep removed: names of segments, and of files, which have the bytes."""

    segments: tuple[str, ...]
    files: tuple[str, ...]


def promote(environment: Environment, txn: CatalogueTxn, drafts: Iterable[Draft]) -> None:
    """Rename synced temporary files to their final names, sync the folder, and record what lies in them.

    An existing file of that name is replaced: it has the same content, or is damaged. If a segment already
    lies elsewhere, this is its place from now on. Idempotent. Raises StoreIO, and Conflict for a segment from
    which n-grams were erased.
    """
    folder, drafts = environment.folder, list(drafts)
    erased.refuse(txn, (info.name for draft in drafts for info, _ in draft.pieces))
    with convert_os_errors(f"naming segments in {folder}"):
        for draft in drafts:
            if draft.path.exists():
                os.replace(draft.path, folder / draft.file)
            elif not (folder / draft.file).exists():
                raise StoreIO(
                    f"{draft.path} vanished before it was named: let nothing else write there; build again"
                )
            places.put(txn, draft.file, [(info.name, at) for info, at in draft.pieces])
        files.sync_folder(folder)


def discard(drafts: Iterable[Draft]) -> None:
    """Remove the temporary files that were not renamed."""
    for draft in drafts:
        remove(draft.path)


def sweep(environment: Environment, segments: Iterable[str], orphans: Iterable[str] = ()) -> Swept:
    """Remove those of these segments that no record names, and those of these files that hold none.

    It takes short write transactions. Reading all records would hold the write lock for long, so it reads a
    snapshot first. Each transaction then looks only at the builds and versions recorded since: nothing else
    can name a segment again that had no name. A file goes with its last segment.
    """
    wanted: list[_Segment | _File] = [*map(_Segment, segments), *map(_File, orphans)]
    if not wanted:
        return Swept((), ())

    def find(txn: CatalogueTxn) -> tuple[Seen, list[_Segment | _File], set[str]]:
        named = version_tree.named_segments(txn) & {item.name for item in wanted}
        left = [item for item in wanted if not item.is_needed(txn, named)]
        return changes.look(txn, (version_tree.BUILD,)), left, named

    # named: of a file whose segment lies elsewhere, too. An import may bring the segment back to it, and end.
    seen, left, named = environment.catalogue.read(find)

    unlinked = set[str]()  # by any transaction: one that fails may run again, and finds them gone

    def remove_some(txn: CatalogueTxn) -> tuple[int, list[str], Seen, set[str]]:
        changed = changes.since(txn, seen)
        live = named | changes.named_since(txn, changed)
        done, gone, own = 0, list[str](), list[str]()
        for item in changes.briefly(left):
            done += 1
            if item.is_needed(txn, live):
                continue
            if isinstance(item, _Segment):
                file, keys = places.drop(txn, item.name)
                gone.append(item.name)
            else:
                file, keys = item.name, places.drop_file(txn, item.name)
            own += keys
            if file is not None and remove(environment.folder / file):
                unlinked.add(file)
        return done, gone, changes.with_own(txn, changed.seen, own), live

    dropped: list[str] = []
    while left:
        done, some, seen, named = environment.write_freeing(remove_some)
        dropped += some
        left = left[done:]
        if left:
            give_way()
    return Swept(tuple(dropped), tuple(unlinked))


@dataclass(frozen=True)
class _Segment:
    """A segment that may have to go."""

    name: str

    def is_needed(self, txn: CatalogueTxn, live: set[str]) -> bool:
        """Return whether it is among the live ones."""
        return self.name in live


@dataclass(frozen=True)
class _File:
    """A file that may have to go."""

    name: str

    def is_needed(self, txn: CatalogueTxn, live: set[str]) -> bool:
        """Return whether one of the live segments lies in it."""
        if names.is_segment(self.name):
            return self.name in live and places.find(txn, self.name).file == self.name
        return places.is_used(txn, self.name)
