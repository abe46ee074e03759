"""A consistent snapshot of a data folder that other processes change meanwhile.

A snapshot is a folder beside the originals. LMDB is copied in one transaction; other files are hard-linked,
so that their bytes stay although garbage collection removes them. Parts are taken after whatever refers to
them, since a writer stores a file before it publishes a reference to it. If a file was removed in between,
the snapshot is taken again.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hmi.backup.contents import APPENDED, SNAPSHOTS, How, how, is_carried
from hmi.model.files import full_or
from hmi.stores.layout import Layout, try_lock
from hmi.stores.plot.plot_meta import PlotMeta
from hmi.stores.plot.plots import plot_errors
from hmi.stores.records.registry import Registry
from hmi.stores.records.whole_registry import RegistryContents
from hmi.stores.tensors.adapter_store import SUFFIX
from plot_store import Snapshot as PlotSnapshot
from plot_store import Store

TRIES = 4
AFTER_STORE = ("lowers", "samples")
"""Parts to which the PLOT store refers. They are taken after it."""


@dataclass(frozen=True)
class FolderSnapshot:
    """A snapshot on disk, of the same structure as the data folder."""

    folder: Path
    missing: tuple[str, ...]
    """One sentence for each file that a record names and that the data folder has lost."""


@contextmanager
def snapshot(data: Path, registry: Registry, plots: Store) -> Iterator[FolderSnapshot]:
    """Take a snapshot for the block, and remove it afterwards. Snapshots of dead processes are removed first.

    Raises StorageFull, Damaged, Unavailable.
    """
    base = data / SNAPSHOTS
    base.mkdir(exist_ok=True)
    clear_dead(base)
    name = f"{int(time.time())}-{secrets.token_hex(4)}"
    with try_lock(base / f"{name}.lock"):
        try:
            yield _take_snapshot(data, base / name, registry, plots)
        except OSError as error:
            raise full_or(error, base) from error
        finally:
            shutil.rmtree(base / name, ignore_errors=True)
            (base / f"{name}.lock").unlink(missing_ok=True)


def clear_dead(base: Path) -> None:
    """Remove the snapshots whose process has died: nobody holds their lock."""
    for lock in base.glob("*.lock"):
        with suppress(FileNotFoundError), try_lock(lock) as free:
            if free:
                shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
                lock.unlink(missing_ok=True)


def _take_snapshot(data: Path, folder: Path, registry: Registry, plots: Store) -> FolderSnapshot:
    for tried in range(TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        # A job that ends within the next moment loses its input, so folders of jobs are linked before, too.
        _take(data, folder, "jobs")
        (folder / "registry").mkdir()
        contents = registry.copy(folder / "registry")
        for part in sorted(os.listdir(data)):
            if how(part) in (How.LINKED, How.COPIED) and part not in AFTER_STORE:
                _take(data, folder, part)
        with plot_errors():
            stored = plots.snapshot(folder / "plots")
        for part in AFTER_STORE:
            _take(data, folder, part)
        missing = tuple(_missing(folder, contents, stored))
        if not missing or tried == TRIES - 1:
            break
    return FolderSnapshot(folder, missing)


def _take(data: Path, folder: Path, part: str) -> None:
    """Link or copy one part, and what is new in it if it was taken before."""
    source, linked = data / part, how(part) is How.LINKED
    if source.is_file():
        _copy(source, folder / part)
        return
    for inner, _, names in os.walk(source):
        target = folder / Path(inner).relative_to(data)
        target.mkdir(parents=True, exist_ok=True)
        for name in filter(is_carried, names):
            take = _link if linked and name not in APPENDED else _copy
            take(Path(inner) / name, target / name)


def _link(source: Path, target: Path) -> None:
    """Link a file unless it is linked already, or has vanished meanwhile."""
    with suppress(FileExistsError, FileNotFoundError):
        try:
            os.link(source, target, follow_symlinks=False)
        except (FileExistsError, FileNotFoundError):
            raise
        except OSError:  # a file system without links, or another one mounted here
            _copy(source, target)


def _copy(source: Path, target: Path) -> None:
    with suppress(FileNotFoundError):
        shutil.copy2(source, target, follow_symlinks=False)


def _missing(folder: Path, contents: RegistryContents, stored: PlotSnapshot) -> Iterator[str]:
    """Yield one sentence for each thing that the snapshot's records refer to and its files lack."""
    layout = Layout(folder)
    for segment in stored.missing:
        yield f"segment {segment} of the PLOT store is missing"
    for meta in stored.versions.values():
        lower = PlotMeta.from_dict(meta).lower
        if lower is not None and not (layout.lowers / f"{lower}{SUFFIX}").exists():
            yield f"the lower layers {lower} are missing"
    for root in contents.roots:
        if not layout.root(root.name, root.version).is_dir():
            yield f"the files of root {root.name} are missing"
    for model in contents.models:
        for version in model.versions:
            what = f"version {version.version} of model {model.tenant}.{model.name} lacks its"
            if not (layout.adapters / f"{version.artefact}{SUFFIX}").exists():
                yield f"{what} artefact"
            if version.plot_version not in stored.versions:
                yield f"{what} PLOT version"
    for job in contents.jobs:
        for name in job.spec.get("inputs", []):
            if not (layout.jobs / job.job / "input" / name).exists():
                yield f"job {job.job} lacks its input {name}"
