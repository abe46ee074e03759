"""Removes what a failed job left in the shared stores: a half-built PLOT, the files of
an unpublished root."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from hmi.core import JobRecord
from hmi.stores.layout import Layout
from hmi.stores.plot.plots import open_plots, plot_errors
from hmi.stores.records.registry import Registry


def discard(registry: Registry, layout: Layout, record: JobRecord) -> None:
    """Free what a failed or cancelled job wrote but did not publish, and what one left for the primary.

    The caller holds the job's lock. A second call does nothing. Raises HmiError if the PLOT store fails.
    """
    builds = record.kind in ("build_plot", "erase", "import_root")
    if not builds or (record.state == "succeeded" and not record.for_primary):
        return
    if layout.plots.exists():
        store = open_plots(layout.plots)
        try:
            with plot_errors():
                store.abandon(record.job)
                for pin in store.pins():
                    if pin.owner == record.job:
                        store.unpin(pin.version, pin.owner)
        finally:
            store.close()
    if record.kind == "import_root" and not _published(registry, record.job):
        _remove_root(layout.roots / record.spec["name"], record.job)


def orphaned_roots(registry: Registry, layout: Layout) -> list[Path]:
    """Root folders that belong to no root and no live job: their job was killed, and its record is gone."""
    # Jobs are read first. A job that ends meanwhile has published its root before, so the roots
    # read next include it.
    known = {job.job for job in registry.live_jobs()} | {root.version for root in registry.roots()}
    return [path for path in sorted(layout.roots.glob("*/*")) if path.is_dir() and path.name not in known]


def _published(registry: Registry, job: str) -> bool:
    return any(root.version == job for root in registry.roots())


def _remove_root(folder: Path, version: str) -> None:
    # The root's own folder stays: another import of the same name may be about to write into it.
    for path in (folder / version, *folder.glob(f".{version}.*.tmp")):
        # Another process may be doing the same.
        with suppress(FileNotFoundError):
            shutil.rmtree(path)
