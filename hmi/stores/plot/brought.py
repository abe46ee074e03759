"""`BroughtPlots`: the PLOT store of a job at a server that is not the primary."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import plot_store
from hmi.config import Settings
from hmi.stores.bucket import Bucket
from hmi.stores.layout import Layout, try_lock, wait_lock
from hmi.stores.plot.plots import as_hmi, limits_of
from plot_store import PlotStoreError, Reader, Remote, Store, VersionInfo, Writer
from plot_store.ground.names import is_id

LOCK: Final = ".plots"
"""A file beside the jobs. Jobs share its lock while they bring a version; who removes versions that nothing
needs holds it alone."""


class BroughtPlots(Store):
    """A store that brings from the bucket what is named, when it is first named.

    Its refs stay where the primary put them: builds here publish apart from them.
    """

    def begin(self, bucket: Bucket, jobs: Path) -> BroughtPlots:
        """Bring from this bucket. jobs: the folder of all jobs, which has LOCK."""
        self._bucket, self._jobs = bucket, jobs
        self._brought: set[str] = set()
        self._bringing = threading.Lock()
        return self

    def version(self, version: str) -> VersionInfo:
        self._bring(version)
        return super().version(version)

    def history(self, ref: str) -> list[VersionInfo]:
        self._bring(ref)
        return super().history(ref)

    def chain(self, version: str) -> list[VersionInfo]:
        self._bring(version)
        return super().chain(version)

    def reader(self, ref_or_id: str, *given: Any, **named: Any) -> Reader:
        self._bring(ref_or_id)
        return super().reader(ref_or_id, *given, **named)

    def writer(self, ref: str, **named: Any) -> Writer:
        self._bring(ref)
        return super().writer(ref, **named)

    def _bring(self, name: str) -> None:
        """Bring a ref, which is then where the bucket has it, or a version by its id; each once. What the
        bucket lacks is left to the caller's look. Raises StoreIO, Damaged, StoreFull."""
        with self._bringing, wait_lock(self._jobs / LOCK, shared=True):
            if name in self._brought:
                return
            try:
                self._pull(name)
            except plot_store.NotFound:
                return
            self._brought.add(name)

    def _pull(self, name: str) -> None:
        place = self._bucket.plots
        if is_id(name):
            if not self._is_here(name):
                self.pull(name, place)
            return
        try:
            brought = self.pull(name, place).version.id
        except plot_store.Conflict:
            brought = ""
        if brought != self.agreed(place).get(name):
            # As the primary of an earlier time, this server published what never reached the bucket.
            there = Remote(place).refs()[name]
            self.pull(there, place)
            self.rollback(name, there)

    def _is_here(self, version: str) -> bool:
        try:
            super().version(version)
        except plot_store.NotFound:
            return False
        return True


@contextmanager
def none_brings(layout: Layout) -> Iterator[bool]:
    """Keep jobs from bringing versions for the block; yields False if one does so now."""
    with try_lock(layout.jobs / LOCK) as free:
        yield free


def open_brought(layout: Layout, settings: Settings, bucket: Bucket) -> BroughtPlots:
    """Open the PLOT store for a job at a server that is not the primary. Raises as `open_plots`."""
    try:
        opened = BroughtPlots.open(layout.plots, create=True, limits=limits_of(settings))
    except PlotStoreError as error:
        raise as_hmi(error) from error
    assert isinstance(opened, BroughtPlots)
    return opened.begin(bucket, layout.jobs)
