"""Renaming finished segment files and unlinking dead ones, both inside a write transaction of the catalogue.

So LMDB's writer lock makes the two exclude each other across processes. The transaction that renames a file
also registers it, and a file is unlinked only if no record names it while the lock is held.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from plot_store.catalogue import changes, version_tree
from plot_store.catalogue.catalogue import CatalogueTxn
from plot_store.catalogue.changes import Seen
from plot_store.database.database import give_way
from plot_store.environment.environment import Environment
from plot_store.ground import files
from plot_store.ground.errors import StoreIO
from plot_store.ground.files import convert_os_errors, remove
from plot_store.segments.segment import Draft


def promote(folder: Path, drafts: Iterable[Draft]) -> None:
    """Rename synced temporary files to their final names, and sync the folder. Idempotent.

    An existing file of that name is replaced: it has the same content, or is damaged. Raises StoreIO.
    """
    with convert_os_errors(f"naming segments in {folder}"):
        for draft in drafts:
            if draft.path.exists():
                os.replace(draft.path, folder / draft.info.name)
            elif not (folder / draft.info.name).exists():
                raise StoreIO(
                    f"{draft.path} vanished before it was named: let nothing else write there; build again"
                )
        files.sync_folder(folder)


def discard(drafts: Iterable[Draft]) -> None:
    """Remove the temporary files that were not renamed."""
    for draft in drafts:
        remove(draft.path)


def sweep(environment: Environment, names: Iterable[str]) -> list[str]:
    """Unlink those of these files that no record names, in short write transactions. Returns their names.

    Reading all records would hold the write lock for long, so a snapshot is read, and each transaction looks
    only at the builds and versions recorded since: a file without a name comes back to life in no other way.
    """
    wanted = list(names)
    if not wanted:
        return []

    def find(txn: CatalogueTxn) -> tuple[Seen, list[str]]:
        named = version_tree.named_segments(txn)
        return changes.look(txn, (version_tree.BUILD,)), [name for name in wanted if name not in named]

    seen, left = environment.catalogue.read(find)

    def unlink_some(txn: CatalogueTxn) -> tuple[int, list[str]]:
        live = changes.named_since(txn, changes.since(txn, seen))
        done, gone = 0, []
        for name in changes.briefly(left):
            done += 1
            if name not in live and remove(environment.folder / name):
                gone.append(name)
        return done, gone

    found: list[str] = []
    while left:
        done, gone = environment.catalogue.write(unlink_some)
        found += gone
        left = left[done:]
        if left:
            give_way()
    return found
