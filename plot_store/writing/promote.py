"""Renaming finished segment files and unlinking dead ones, both inside a write transaction of the catalogue.

So LMDB's writer lock makes the two exclude each other across processes. The transaction that renames a file
also registers it, and a file is unlinked only if no record names it while the lock is held.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from plot_store.catalogue import version_tree
from plot_store.catalogue.catalogue import CatalogueTxn
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
    """Unlink those of these files that no record names, in one write transaction. Returns their names."""

    def body(txn: CatalogueTxn) -> list[str]:
        live = version_tree.named_segments(txn)
        return [name for name in names if name not in live and remove(environment.folder / name)]

    return environment.catalogue.write(body)
