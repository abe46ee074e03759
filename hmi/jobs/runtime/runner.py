"""Submits jobs and ensures that each reaches an end state. Several processes may do so on one data folder."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from hmi.config import Settings
from hmi.core import ENDED, JobKind, JobRecord, Pacing, Progress, now
from hmi.errors import Conflict, Damaged, NotFound, Unavailable
from hmi.jobs.runtime.board import Board, read_pacing
from hmi.jobs.runtime.cleaning import clean
from hmi.jobs.runtime.folders import JobFolder, new_job_id
from hmi.jobs.runtime.memory_room import MemoryRoom
from hmi.jobs.runtime.pacing import Pacer, in_background
from hmi.jobs.runtime.process import after_end, put_back
from hmi.jobs.runtime.starter import Process, Starter
from hmi.stores.bucket import bucket_of
from hmi.stores.failures import log_damaged, log_failure, run_each
from hmi.stores.layout import Layout
from hmi.stores.records.claims import may_take
from hmi.stores.records.job_table import asked_to_stop
from hmi.stores.records.registry import Registry

T = TypeVar("T")


class JobTurns:
    """The tenants' turns, so that no tenant holds up others. Not thread-safe."""

    def __init__(self) -> None:
        self._last: dict[str | None, int] = {}  # tenant -> its last turn
        self._turn = 0

    def first(
        self,
        waiting: Iterable[T],
        tenant_of: Callable[[T], str | None],
        elsewhere: Mapping[str | None, int] = {},
    ) -> T:
        """Return the first of those that wait whose tenant has waited longest for its turn.

        elsewhere: how many jobs of each tenant other servers run. A tenant with fewer comes first.
        """
        return min(
            waiting, key=lambda one: (elsewhere.get(tenant_of(one), 0), self._last.get(tenant_of(one), 0))
        )

    def took(self, tenant: str | None) -> None:
        """Note that a job of this tenant has started."""
        self._turn += 1
        self._last[tenant] = self._turn

    def lost(self, tenant: str | None) -> None:
        """Note that the tenant's job was put back, so that it is the next one to start."""
        self._last.pop(tenant, None)


log = logging.getLogger("hmi.jobs")
POLL_S = 0.2
"""Pause between two rounds of the supervisor."""
RECOVER_EVERY_S = 2.0
HOUSEKEEPING_EVERY_S = 3600.0
STOP_S = 15.0
"""`stop` waits this long for the supervisor, and then this long for the jobs, before it kills them."""
CANCEL_S = 30.0
"""A cancelled job that is still running after this time is killed."""
TOLD_S = 1.0
"""The progress of a job at another server is asked for at most this often."""
RETRY_S = 1.0
"""A job is not started again within this time of its last start."""


class JobRunner:
    """Owns the child processes of the jobs that this process runs. The lock on a job's folder
    decides which process runs it."""

    def __init__(
        self,
        registry: Registry,
        settings: Settings,
        workers: int | None = None,
        *,
        bodies: str | None = None,
        housekeeping: Callable[[], None] = lambda: None,
    ) -> None:
        self._registry, self.starter = registry, Starter(settings, bodies)
        self._settings, self.pacer = settings, Pacer(settings.background_percent)
        self._most = workers
        self._layout, self._bucket = Layout(settings.data), bucket_of(settings)
        self._housekeeping = housekeeping
        self.on_ended: list[Callable[[JobRecord], None]] = []
        """Called with the record of each job whose process has ended here, on the runner's thread."""
        self._elsewhere: dict[str, JobRecord] = {}  # jobs that other servers ran at the last look
        self._queued: set[str] = set()  # jobs that waited since then
        self._told: dict[str, tuple[float, Progress]] = {}  # their progress, and when it was asked for
        self._children: dict[str, Process] = {}
        self._not_before: dict[str, float] = {}  # job -> the earliest time of another start
        self._cancelled_at: dict[str, float] = {}  # job -> when its cancellation was seen
        self._turns, self._turns_behind = JobTurns(), JobTurns()
        self._behind: dict[str, str] = {}  # background job among the children -> its tenant
        self._runs_behind = True
        self._memory = MemoryRoom(registry, self._layout, settings.background_bytes)
        self._leaving: set[str] = set()  # background jobs that were asked to give way
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    # Jobs

    def submit(
        self,
        kind: JobKind,
        spec: dict[str, Any],
        tenant: str | None = None,
        inputs: Mapping[str, Path | bytes] | None = None,
        *,
        tenant_limit: int | None = None,
    ) -> JobRecord:
        """Queue a job. Its inputs are durable before its record is visible. Uploads are moved,
        other files copied.

        Raises Conflict (another job has the same target), InvalidInput, NotFound (tenant),
        StorageFull, Unavailable, QuotaExceeded (the tenant has `tenant_limit` queued and running jobs, began
        too many within a day, or may store no more).
        """
        self._registry.check_job_quota(tenant, tenant_limit)
        inputs = inputs or {}
        job = new_job_id()
        spec = {**spec, "inputs": sorted(inputs)}
        self.recover()  # so that no job without a process causes a Conflict
        record = JobRecord(job=job, kind=kind, state="queued", created=now(), tenant=tenant, spec=spec)
        self._registry.rooms.check_job(record)
        folder = self._folder(job)
        folder.create(inputs, self._layout.incoming)
        try:
            self._registry.add_job(record, tenant_limit)
        except BaseException:
            folder.remove()
            raise
        self._wake.set()
        return record

    def cancel(self, job: str) -> JobRecord:
        """Ask a job to stop: a queued one ends now, a running one at its next step.
        Raises NotFound, Conflict."""
        before = self._registry.job(job)
        if before.state in ENDED:
            raise Conflict(
                f"job {job} has already ended ({before.state}): there is nothing to cancel", job=job
            )
        self._registry.update_job(job, asked_to_stop)
        self.settle(job)  # a job without a process ends now
        self._wake.set()
        return self._registry.job(job)

    def refresh(self, job: str) -> JobRecord:
        """The job's record. A job that is `running` without a process is put back first. Raises NotFound."""
        if self._registry.job(job).state == "running":
            self.settle(job)
        return self._registry.job(job)

    def read_progress(self, job: str) -> Progress:
        """The job's last progress; empty before it began. Raises NotFound for an impossible id."""
        folder, record = self._folder(job), self._elsewhere.get(job)
        if record is not None and record.state == "running":
            at, told = self._told.get(job, (float("-inf"), Progress()))
            if time.monotonic() - at < TOLD_S:
                return told
            with suppress(Unavailable):
                told = folder.take_told()
            self._told = {j: t for j, t in self._told.items() if j in self._elsewhere}
            self._told[job] = time.monotonic(), told
            return told
        return folder.read_progress()

    def read_pacing(self, job: str) -> Pacing | None:
        """The pauses of a running background job. Other jobs, and those that have ended, have None."""
        return read_pacing(self._folder(job).board)

    def forget(self, jobs: list[str]) -> None:
        """Stop and remove jobs whose records are gone. A job that another process runs removes itself."""
        for job in jobs:
            with self._lock:
                child = self._pop(job)
            if child is not None:
                child.kill()
            self._tidy(job)

    def recover(self) -> None:
        """Put back every job that is `running` although no process runs it, here or at another server."""
        live = self._registry.live_jobs(tolerant=True, behind=False)
        for _, job in self._registry.background_jobs("running"):
            with log_damaged(log, f"job {job}"), suppress(NotFound):
                live.append(self._registry.job(job))
        taken = {r.job: r for r in live if not self._is_mine(r) and r.node is not None}
        for record in live:
            if record.state == "running" or record.job in taken:
                self.settle(record.job)
        # A short job may begin and end at another server between two looks.
        short = {job for job in self._queued - {record.job for record in live} if self._was_elsewhere(job)}
        for job in (self._elsewhere.keys() - taken.keys()) | short:
            with suppress(Unavailable):  # its log informs only
                self._folder(job).take_told()
            self._tidy(job)
        self._elsewhere, self._queued = taken, {record.job for record in live if record.state == "queued"}

    def release(self) -> None:
        """Give back all jobs that this server had when it last ran, if it is to run none."""
        node = self._registry.node()
        for record in self._registry.live_jobs(tolerant=True):
            if record.node == node:
                self._put_back(record.job, crashed=record.state == "running")

    def settle(self, job: str) -> None:
        """Put back, end or tidy up after a job that has no process. Nothing happens to one that has one."""
        if job in self._children:  # left to `_reap`
            self._tidy(job)
            return
        with log_damaged(log, f"job {job}"), suppress(NotFound):
            record = self._registry.job(job)
            if record.state not in ENDED and not self._is_mine(record):
                if record.node is not None and self._registry.is_primary() and not self._lives(record.node):
                    log.warning("the server that ran job %s is gone: another one will go on", job)
                    self._put_back(job, crashed=record.state == "running", of=record.node)
                return
        self._put_back(job, crashed=True)

    def _was_elsewhere(self, job: str) -> bool:
        with log_damaged(log, f"job {job}"), suppress(NotFound):
            return not self._is_mine(self._registry.job(job))
        return False

    def _lives(self, node: str) -> bool:
        """Return whether a server of this id answers. The primary removes those that do not."""
        return any(server.node == node for server in self._registry.servers())

    @property
    def _workers(self) -> int:
        """The number of jobs that run here at once."""
        if self._most is not None:
            return self._most
        return self._settings.job_workers if self._registry.is_primary() else self._settings.replica_jobs

    def _is_mine(self, record: JobRecord) -> bool:
        """Return whether no other server has the job. A job of an earlier release names none."""
        node = self._registry.node()
        return node in ("", record.node) or (record.node is None and self._registry.is_primary())

    def run_one(self, job: str, on_progress: Callable[[Progress], None] | None = None) -> JobRecord:
        """Run a job to its end in a child process, or follow it if another process runs it. Blocks.

        Ctrl-C cancels the job and waits for its end; a second Ctrl-C kills its process. If the
        runner is stopped meanwhile, the job's current record is returned. Raises NotFound.
        """
        try:
            return self._follow(job, on_progress)
        except KeyboardInterrupt:
            with suppress(Conflict):
                self.cancel(job)
            try:
                return self._follow(job, on_progress)
            except KeyboardInterrupt:
                self._kill(job)
                return self._registry.job(job)
        finally:
            self._kill(job)

    # The supervisor

    def start(self, *, background: bool = True) -> None:
        """Start the supervisor thread: it recovers jobs, starts queued ones and reaps their
        processes. A second call does nothing. background: whether background jobs are started, too."""
        if self._thread is not None:
            return  # a replica that becomes the primary runs jobs already
        self._runs_behind = background
        self._thread = threading.Thread(target=self._supervise, name="hmi-jobs", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop supervising and stop running jobs. They go back to the queue and resume from their
        last checkpoint at the next start."""
        self._stopping.set()
        self._wake.set()
        self.pacer.close()  # a process that is paused could not stop in order
        if self._thread is not None:
            # Do not wait longer: housekeeping may take minutes, and the next one completes what is cut off.
            self._thread.join(STOP_S)
        with self._lock:
            children = list(self._children.values())
            for child in children:
                self._pop(child.job)
        for child in children:
            child.terminate()
        deadline = time.monotonic() + STOP_S
        for child in children:
            if not child.wait(max(0.0, deadline - time.monotonic())):
                child.kill()
            self._put_back(child.job, crashed=False)
        self.starter.close()

    def _supervise(self) -> None:
        next_recovery = next_cleaning = 0.0
        while not self._stopping.is_set():
            try:
                at = time.monotonic()
                self._reap()
                self.starter.rest()
                if at >= next_recovery:
                    self.recover()
                    next_recovery = at + RECOVER_EVERY_S
                self._start_queued()
                if at >= next_cleaning:
                    next_cleaning = at + HOUSEKEEPING_EVERY_S
                    self._clean()
            except Exception as error:
                # A full disk or a damaged record must not end supervision: the next round tries again.
                log_failure(log, "a round of the jobs' supervisor failed; the next one follows", error)
                self._stopping.wait(RECOVER_EVERY_S)
            self._wake.wait(POLL_S)
            self._wake.clear()

    def _reap(self) -> None:
        with self._lock:
            ended = [c for c in self._children.values() if not c.running()]
            for child in ended:
                self._pop(child.job)
        for child in ended:
            self._put_back(child.job, crashed=True)
            self._tell_ended(child.job)
        self._kill_stubborn()

    def _pop(self, job: str) -> Process | None:
        """Forget a job's process. The caller holds `self._lock`."""
        self._behind.pop(job, None)
        self._leaving.discard(job)
        self._cancelled_at.pop(job, None)
        self._memory.ended(job)
        return self._children.pop(job, None)

    def _tell_ended(self, job: str) -> None:
        with log_damaged(log, f"telling of job {job}"), suppress(NotFound):
            record = self._registry.job(job)
            if record.state in ENDED:
                for told in self.on_ended:
                    told(record)

    def _start_queued(self) -> None:
        at = time.monotonic()
        with self._lock:
            self._not_before = {job: when for job, when in self._not_before.items() if when > at}
        node, leads = self._registry.node(), self._registry.is_primary()
        kinds = self._registry.primary_kinds()
        if not leads and (self.pacer.answering or not kinds):
            return  # this or another server is less busy later; or the primary has an earlier release
        live = self._registry.live_jobs(tolerant=True, behind=False)
        self._queued |= {record.job for record in live if record.state == "queued"}
        queued = [r for r in live if r.state == "queued" and may_take(r, node, leads, kinds)]
        elsewhere = Counter(r.tenant for r in live if r.state == "running" and r.node not in (None, node))
        waiting = queued[:]
        while waiting:
            with self._lock:
                if self._stopping.is_set():
                    break
                # Background jobs do not count: they give way at their next step, and nobody waits for that.
                if len(self._children) - len(self._behind) >= self._workers:
                    # What a replica has built is published at once: that takes a moment, and no place.
                    waiting = [record for record in waiting if record.made is not None]
                    if not waiting:
                        break
                record = self._turns.first(waiting, lambda one: one.tenant, elsewhere)
                waiting.remove(record)
                if self._may_start(record.job, at) and self._spawn(record.job, len(waiting) + 1):
                    self._turns.took(record.tenant)
        with self._lock:
            self._give_way()
            if not all(record.job in self._children for record in queued):
                return  # a job that somebody waits for is to start soon
        self._start_background(at)

    def _start_background(self, at: float) -> None:
        """Start background jobs in the places that are free. Call it only while no other job waits."""
        if len(self._children) >= self._workers or not self._runs_behind:
            return
        waiting = dict(sorted((job, tenant) for tenant, job in self._registry.background_jobs("queued")))
        while waiting:
            with self._lock:
                if len(self._children) >= self._workers or self._stopping.is_set():
                    return
                waiting = {job: tenant for job, tenant in waiting.items() if self._may_start(job, at)}
                if not (fitting := self._memory.fitting(list(waiting))):
                    return
                job = self._turns_behind.first(fitting, waiting.__getitem__)
                if self._spawn(job):
                    self._behind[job] = waiting[job]
                    self._turns_behind.took(waiting[job])
                del waiting[job]

    def _give_way(self) -> None:
        """Ask background jobs beyond the number of places to stop at their next step. They resume later."""
        too_many = len(self._children) - self._workers - len(self._leaving)
        for job in [job for job in reversed(self._behind) if job not in self._leaving][: max(0, too_many)]:
            self._children[job].terminate()
            self._leaving.add(job)
            self._turns_behind.lost(self._behind[job])

    def _may_start(self, job: str, at: float) -> bool:
        return job not in self._children and self._not_before.get(job, 0.0) <= at

    def _spawn(self, job: str, queued: int = 1) -> bool:
        """Start a process for a job unless another process runs it. The caller holds `self._lock`.

        queued: how many jobs wait, this one included."""
        with self._folder(job).try_lock() as free:
            if not free:
                return False
        try:
            if not self._registry.take_job(job):
                return False
        except NotFound:
            return False  # its tenant was deleted meanwhile
        # If another process takes the job's lock before the child does, the child ends with TAKEN.
        self._not_before[job] = time.monotonic() + RETRY_S
        self._children[job] = self._started(job, queued)
        return True

    def _started(self, job: str, queued: int) -> Process:
        folder = self._folder(job)
        kind = None
        with suppress(NotFound):  # its tenant was deleted meanwhile: the process will notice
            kind = self._registry.job(job).kind
        if kind is None or not in_background(kind, self._settings):
            return self.starter.start(folder, job, queued)
        board = Board.new(folder.board)
        child = self.starter.start_in_background(folder, job)
        self.pacer.add(job, child, board)
        self._memory.took(job, child.pid)
        return child

    def _kill_stubborn(self) -> None:
        """Kill children whose jobs were cancelled but have not stopped."""
        with self._lock:
            children = list(self._children.values())
        for child in children:
            with suppress(NotFound):
                try:
                    if not self._registry.job(child.job).cancel_requested:
                        continue
                except Damaged:
                    continue  # the job's state is unknown; its process will end with this error
            self.pacer.remove(child.job)  # it is to notice, and to end
            since = self._cancelled_at.setdefault(child.job, time.monotonic())
            if time.monotonic() - since > CANCEL_S:
                self._kill(child.job)

    def _follow(self, job: str, on_progress: Callable[[Progress], None] | None) -> JobRecord:
        shown: Progress | None = None
        while True:
            self._reap()
            record = self._registry.job(job)
            progress = self.read_progress(job)
            if on_progress is not None and progress != shown:
                on_progress(progress)
                shown = progress
            if record.state in ENDED or self._stopping.is_set():
                return record
            with self._lock:
                if job not in self._children:
                    self._put_back(job, crashed=True)
                    if self._not_before.get(job, 0.0) <= time.monotonic():
                        self._spawn(job)
                child = self._children.get(job)
            if child is None:
                time.sleep(POLL_S)
            else:
                child.wait(POLL_S)

    def _kill(self, job: str) -> None:
        with self._lock:
            child = self._pop(job)
        if child is not None:
            if child.running():
                child.kill()
            self._put_back(job, crashed=True)

    def _put_back(self, job: str, *, crashed: bool, of: str | None = None) -> None:
        with log_damaged(log, f"job {job}"), suppress(NotFound), self._folder(job).try_lock() as free:
            if free:
                put_back(self._registry, job, crashed=crashed, of=of)
        self._tidy(job)

    def _tidy(self, job: str) -> None:
        folder = self._folder(job)
        if folder.path.exists():
            with log_damaged(log, f"tidying after job {job}"), folder.try_lock() as free:
                if free:
                    after_end(self._registry, folder, job)

    def _clean(self) -> None:
        work: dict[str, Callable[[], object]] = {"cleaning": self._sweep}
        if self._registry.is_primary():
            work["housekeeping"] = self._housekeeping
        run_each(log, work)

    def _sweep(self) -> None:
        if not self._registry.is_primary():
            clean(self._registry, self._layout)
            return
        for job in self._registry.drop_ended_jobs():
            self._tidy(job)
        for record in self._registry.live_jobs(tolerant=True):
            if record.node is not None and not self._is_mine(record):
                self.settle(record.job)  # also background jobs that wait, which `recover` does not read
        clean(self._registry, self._layout)

    def _folder(self, job: str) -> JobFolder:
        return JobFolder(self._layout.jobs, job, self._bucket)
