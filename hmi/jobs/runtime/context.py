"""The context of a job: its record and files, the stores, progress reports and cancellation."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from hmi.config import Settings
from hmi.core import JobRecord, Progress, now
from hmi.errors import JobCancelled, NotFound
from hmi.jobs.runtime.folders import JobFolder, PinnedPlots
from hmi.stores.bucket import Bucket, bucket_of
from hmi.stores.layout import Layout
from hmi.stores.plot.plots import current_version, open_plots
from hmi.stores.plot.sharing import share
from hmi.stores.records.registry import Registry
from hmi.stores.root_files import RootFiles
from hmi.stores.tensors.adapter_store import LOWER_CURE, AdapterStore
from hmi.stores.tensors.samples import Samples
from plot_store import Store, VersionInfo

WRITE_EVERY_S = 0.2
"""Progress is written at most this often."""
COLLECTION_S = 3600.0
"""A job that ends waits at most this long for a collection of the bucket."""
ASK_EVERY_S = 0.5
"""The registry is asked for a cancellation at most this often."""


class JobStopped(BaseException):
    """The process is to end; the job will be resumed later. Not an Exception, so that no job body
    handles it as a failure."""


class JobContext:
    """One attempt at one job. A body must call `progress` often, since it also raises when the job
    is to stop."""

    def __init__(
        self,
        job: JobRecord,
        settings: Settings,
        registry: Registry,
        *,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.job, self.settings, self.registry = job, settings, registry
        self.layout = Layout(settings.data)
        self._files = JobFolder(self.layout.jobs, job.job)
        self._stopping = stopping
        self.watch: Callable[[], None] = lambda: None
        """Called at each step of the body. It may raise, to end what the body is doing."""
        self._phase: str | None = None
        self._moved_on = False
        self._began: tuple[float, int] = (0.0, 0)
        self._written = self._asked = float("-inf")

    @property
    def folder(self) -> Path:
        """The job's own folder, for checkpoints and other files that a resumed run needs. It
        survives a crash; it is cleared when the job ends."""
        return self._files.path

    @property
    def input(self) -> Path:
        """The folder of the files that the job was given."""
        return self._files.input

    @cached_property
    def plots(self) -> Store:
        return open_plots(self.layout.plots, self.settings)

    @cached_property
    def bucket(self) -> Bucket | None:
        return bucket_of(self.settings)

    @cached_property
    def roots(self) -> RootFiles:
        return RootFiles(self.layout, self.bucket, lambda: not self.registry.is_primary())

    @cached_property
    def adapters(self) -> AdapterStore:
        return AdapterStore(self.layout.adapters, bucket=self.bucket)

    @cached_property
    def lowers(self) -> AdapterStore:
        return AdapterStore(self.layout.lowers, LOWER_CURE, self.bucket)

    @cached_property
    def samples(self) -> Samples:
        return Samples(self.layout.samples, self.bucket)

    def domain(self, domain: str) -> VersionInfo:
        """Return a domain's current version. Raises NotFound."""
        found = current_version(self.plots, domain)
        if found is None:
            raise NotFound(f"domain {domain} does not exist: create it first", field="domain")
        return found

    def share(self, ref_or_id: str) -> None:
        """Bring a PLOT to the bucket, before the registry names it; see `sharing.share`."""
        share(self.plots, self.bucket, ref_or_id, self.registry.leads, COLLECTION_S)

    def pinned(self) -> PinnedPlots:
        """The PLOT versions that this or an earlier attempt fixed."""
        return self._files.pinned()

    def pin(self, plots: PinnedPlots) -> None:
        """Fix the PLOT versions that this job depends on. Raises StorageFull."""
        self._files.pin(plots)

    def progress(self, step: int, total: int, *, phase: str, loss: float | None = None) -> None:
        """Report that `step` of `total` steps of a phase are done.

        Progress is written at most 5 times a second, and always for a new phase and the last step.
        Raises JobCancelled (by the user), JobStopped (shutdown), OSError (disk full).
        """
        at = time.monotonic()
        fresh = phase != self._phase
        if fresh:
            self._phase, self._began = phase, (at, step)
        if fresh or step >= total or at - self._written >= WRITE_EVERY_S:
            self._written = at
            self._files.write_progress(self._figures(at, step, total, loss))
        self.check(at)

    def check(self, at: float | None = None) -> None:
        """Raise JobStopped or JobCancelled if the job is to stop. The registry is asked at most
        twice a second."""
        if self._stopping():
            raise JobStopped
        self.watch()
        at = time.monotonic() if at is None else at
        if at - self._asked < ASK_EVERY_S:
            return
        self._asked = at
        wanted = False
        with suppress(NotFound):  # its tenant was deleted, and the job with it
            wanted = not self.registry.job(self.job.job).cancel_requested
        if not wanted:
            raise JobCancelled("the job was cancelled: start it again if that was a mistake")

    def checkpointed(self) -> None:
        """Reset the count of deaths without progress. Call it for each new checkpoint, that is,
        when more work is durable than any earlier attempt had kept."""
        if self.job.stalled and not self._moved_on:
            self._moved_on = True
            with suppress(NotFound):  # its tenant was deleted: the next `check` says so
                self.registry.update_job(self.job.job, lambda r: r.model_copy(update={"stalled": 0}))

    def log(self, text: str) -> None:
        """Append a line to the job's log."""
        with self._files.log.open("a", encoding="utf-8") as file:
            file.write(f"{now()} {text}\n")

    def close(self) -> None:
        if "plots" in self.__dict__:
            self.plots.close()

    def _figures(self, at: float, step: int, total: int, loss: float | None) -> Progress:
        began, first = self._began
        rate = (step - first) / (at - began) if step > first and at > began else None
        eta_ms = None if rate is None else max(0, round((total - step) / rate * 1000))
        # NaN and infinity are not JSON.
        loss = loss if loss is not None and abs(loss) < 1e30 else None
        return Progress(phase=self._phase or "", step=step, total=total, rate=rate, eta_ms=eta_ms, loss=loss)


Body = Callable[[JobContext], dict[str, Any]]
"""The function that runs one kind of job. It returns the result for the job's record. Raises HmiError."""
