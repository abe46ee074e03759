"""Snapshots: a copy of the catalogue in one transaction, and hard links to the files that it names.

A hard link keeps a file's bytes when `gc` unlinks its own name, so a snapshot needs no lock and no pin.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plot_store.catalogue import places, version_tree
from plot_store.catalogue.catalogue import CatalogueTxn
from plot_store.environment.environment import CATALOGUE, SEGMENTS, Environment
from plot_store.ground.files import convert_os_errors

TRIES = 5
"""Copies of the catalogue that are made while `gc` removes segments between a copy and its links."""


@dataclass(frozen=True)
class Snapshot:
    """The contents of a snapshot."""

    versions: dict[str, dict[str, Any]]
    """The metadata of each version, by its id."""
    missing: tuple[str, ...]
    """Names of files of segments that the catalogue names and the store has lost."""


def snapshot(environment: Environment, folder: Path) -> Snapshot:
    """Write a snapshot into the empty folder `folder`. The store may be changed meanwhile.

    Raises StoreIO, StoreFull, Damaged.
    """
    catalogue, segments = folder / CATALOGUE, folder / SEGMENTS
    with convert_os_errors(f"making the snapshot {folder}"):
        segments.mkdir(parents=True)
        for tried in range(TRIES):
            shutil.rmtree(catalogue, ignore_errors=True)
            catalogue.mkdir()
            named, versions = environment.catalogue.copy(catalogue, _contents)
            missing = tuple(sorted(name for name in named if not _linked(environment.folder, segments, name)))
            if not missing or tried == TRIES - 1:
                break
        for extra in {path.name for path in segments.iterdir()} - named:  # of an earlier try
            (segments / extra).unlink()
    return Snapshot(versions, missing)


def _contents(txn: CatalogueTxn) -> tuple[set[str], dict[str, dict[str, Any]]]:
    ids = txn.keys(version_tree.VERSION)
    files = {places.find(txn, segment).file for segment in version_tree.named_segments(txn)}
    return files, {i: version_tree.get_meta(txn, i).meta for i in ids}


def _linked(source: Path, target: Path, name: str) -> bool:
    """Link a file if no earlier try has; copy it where there are no links. Returns whether it exists."""
    with contextlib.suppress(FileNotFoundError):
        try:
            if not (target / name).exists():
                os.link(source / name, target / name)
        except FileNotFoundError:
            raise
        except OSError:
            shutil.copy2(source / name, target / name)
        return True
    return False
