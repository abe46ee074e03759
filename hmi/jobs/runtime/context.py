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
from hmi.errors import Damaged, JobCancelled, NotFound, Unavailable
from hmi.jobs.runtime.folders import JobFolder, PinnedPlots
from hmi.jobs.runtime.kept import Kept
from hmi.model.files import write_json
from hmi.stores.bucket import Bucket, bucket_of
from hmi.stores.layout import Layout, read_json
from hmi.stores.plot.brought import open_brought
from hmi.stores.plot.plots import current_version, open_plots, plot_errors
from hmi.stores.plot.sharing import share
from hmi.stores.records.registry import Registry
from hmi.stores.root_files import RootFiles
from hmi.stores.tensors.adapter_store import LOWER_CURE, AdapterStore
from hmi.stores.tensors.samples import Samples
from plot_store import Store, VersionInfo
from plot_store.ground.names import is_id

WRITE_EVERY_S = 0.2
"""Progress is written at most this often."""
TELL_EVERY_S = 2.0
"""Progress is told to other servers at most this often."""
BUILD = "build.json"
"""The file with the record of an unfinished build, for another server."""
COLLECTION_S = 3600.0
"""A job that ends waits at most this long for a collection of the bucket."""
ASK_EVERY_S = 0.5
"""The registry is asked for a cancellation at most this often."""


class JobStopped(BaseException):
    """The process is to end; the job will be resumed later. Not an Exception, so that no job body
    handles it as a failure."""


class ForPrimary(BaseException):
    """The job goes back to the queue, and the primary ends it: this server cannot."""

    def __init__(self, made: str | None = None) -> None:
        """made: the PLOT version that the job has built, which the bucket has; None: it is to go on."""
        self._made = made

    def hand_over(self, record: JobRecord) -> JobRecord:
        """The job's record afterwards."""
        if record.state != "running":
            return record
        changes = {"state": "queued", "attempts": record.attempts - 1, "node": None, "for_primary": True}
        return record.model_copy(update={**changes, "made": self._made})


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
        self._written = self._asked = self._told = float("-inf")
        shared = self.bucket is not None and registry.node()
        self._kept = Kept(self.bucket, job.job, job.attempts, self.folder) if shared and self.bucket else None
        self._brought = False  # whether another server's checkpoint is in the folder
        self.elsewhere = not registry.is_primary()
        """True if the primary is another server."""

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
        if self.elsewhere and self.bucket is not None:
            return open_brought(self.layout, self.settings, self.bucket)
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
        """Bring a PLOT to the bucket, before the registry names it; see `sharing.share`.

        Only the primary moves refs. So for a ref that this job has built a version of at another server, that
        version goes there, and the primary ends the job: raises ForPrimary.
        """
        if not self.elsewhere:
            share(self.plots, self.bucket, ref_or_id, self.registry.leads, COLLECTION_S)
            return
        made = None if is_id(ref_or_id) else self.built()
        sent = ref_or_id if made is None else made.id
        share(self.plots, self.bucket, sent, lambda: self.registry.has_claim(self.job.job), COLLECTION_S)
        if not is_id(ref_or_id):
            raise ForPrimary(sent)

    def built(self) -> VersionInfo | None:
        """The PLOT version that this job has built and left apart, at a server that is not the primary."""
        with plot_errors():
            mine = (pin.version for pin in self.plots.pins() if pin.owner == self.job.job)
            return next((self.plots.version(version) for version in mine), None)

    def publish_made(self) -> None:
        """Publish the PLOT version that another server has built for this job, if it has. Raises Conflict
        (the domain has moved), Unavailable, Damaged, StorageFull."""
        if self.job.made is not None and self.bucket is not None and not self.elsewhere:
            with plot_errors():
                self.plots.fetching(self.bucket.plots).publish(self.job.made)

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
            figures = self._figures(at, step, total, loss)
            self._files.write_progress(figures)
            self._tell(at, figures)
        self.check(at)

    def _tell(self, at: float, figures: Progress) -> None:
        if self.elsewhere and self._kept is not None and at - self._told >= TELL_EVERY_S:
            self._told = at
            with suppress(Unavailable):  # the next one says more
                self._kept.tell(figures)

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
            record = self.registry.job(self.job.job)
            if record.node != self.job.node:
                raise JobStopped  # another server has it by now
            wanted = not record.cancel_requested
        if not wanted:
            raise JobCancelled("the job was cancelled: start it again if that was a mistake")

    def checkpointed(self) -> None:
        """Reset the count of deaths without progress, and bring what the folder keeps to the bucket, if there
        is one. Call it for each new checkpoint, that is, when more work is durable than any earlier attempt
        had kept."""
        self.keep(now=False)
        if self.job.stalled and not self._moved_on:
            self._moved_on = True
            with suppress(NotFound):  # its tenant was deleted: the next `check` says so
                self.registry.update_job(self.job.job, lambda r: r.model_copy(update={"stalled": 0}))

    def resume(self) -> None:
        """Bring what the last attempt kept, if another server made it. Raises Unavailable, StorageFull."""
        if self._kept is not None:
            self._brought = self._kept.fetch()

    def keep(self, *, now: bool = True) -> None:
        """Bring what the folder keeps to the bucket, if there is one: another server can go on from it. now:
        also if that was just done. A bucket that does not answer gets it later."""
        if self._kept is not None:
            try:
                self._kept.put(now=now)
                self._kept.put_log()
            except Unavailable as error:
                self.log(f"a checkpoint did not reach the bucket: {error.message}")

    def keep_build(self) -> None:
        """Bring what this job's PLOT build has finished to the bucket, if there is one. `checkpointed` then
        brings the record of it."""
        if self._kept is not None and self.bucket is not None:
            try:
                with plot_errors():
                    found = self.plots.fetching(self.bucket.plots).put_build(self.job.job)
            except Unavailable as error:
                self.log(f"a part of the build did not reach the bucket: {error.message}")
            else:
                write_json(self.folder / BUILD, found or {})

    def take_build(self) -> None:
        """Go on with the build that another server began for this job, if it did."""
        stored = read_json(self.folder / BUILD) if self._brought else None
        if isinstance(stored, dict) and stored and self.bucket is not None:
            try:
                with plot_errors():
                    self.plots.fetching(self.bucket.plots).take_build(self.job.job, stored)
            except Damaged as error:
                self.log(f"the build begins anew: {error.message}")

    def tell_last(self) -> None:
        """Bring the progress and the log to the bucket, for the primary, if that is another server."""
        if self.elsewhere and self._kept is not None:
            with suppress(Unavailable):  # they only inform
                self._kept.tell(self._files.read_progress())
                self._kept.put_log()

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
