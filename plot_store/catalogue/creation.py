"""Creation of a catalogue under a temporary name, so that a store has a complete one or none."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import uuid
from pathlib import Path
from typing import Final

from plot_store.catalogue.catalogue import Catalogue
from plot_store.ground import files
from plot_store.ground.errors import StoreIO

_DRAFT: Final = re.compile(rf"catalogue\.[0-9a-f]{{32}}{re.escape(files.TEMPORARY)}")


def make(folder: Path) -> None:
    """Create an empty catalogue atomically, unless there is one. A failure leaves no partial catalogue.

    Raises OSError, StoreFull, StoreIO.
    """
    if (folder / "data.mdb").exists():
        return
    draft = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}{files.TEMPORARY}")
    try:
        draft.mkdir()
        Catalogue(draft, create=True, read_only=False).close()
        files.sync_folder(draft)
        _rename_folder(draft, folder)
        files.sync_folder(folder.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def unfinished(store: Path, oldest: float) -> dict[str, int]:
    """Find partial catalogues that a killed `make` left in a store's folder.

    oldest: Unix seconds; later ones are skipped, since they may still be in the making.
    Returns bytes by name.
    """
    found: dict[str, int] = {}
    for path in store.glob(f"*.*{files.TEMPORARY}"):
        if _DRAFT.fullmatch(path.name):
            with contextlib.suppress(FileNotFoundError):  # its maker has just finished
                if path.stat().st_mtime < oldest:
                    found[path.name] = files.folder_bytes(path)
    return found


def remove(path: Path) -> bool:
    """Delete a partial catalogue. Returns whether it is gone."""
    shutil.rmtree(path, ignore_errors=True)
    return not path.exists()


def _rename_folder(draft: Path, folder: Path) -> None:
    """Rename the draft to its final name, unless another process did so first. Raises OSError, StoreIO."""
    try:
        os.replace(draft, folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if not (folder / "data.mdb").exists():
            raise StoreIO(
                f"{folder} holds files that are not a catalogue: move them away, then open the store again"
            ) from error
