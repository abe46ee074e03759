"""One attempt at one job, in a process of its own.

The process holds the lock on the job's folder as long as it lives, and the kernel frees the lock
when it dies. So a job that is "running" with a free lock has lost its process. Whoever finds such a
job puts it back into the queue (`put_back`).
"""

from __future__ import annotations

import errno
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hmi.config import Settings
from hmi.core import ENDED, JobCost, JobKind, JobRecord, now
from hmi.errors import Damaged, HmiError, JobCancelled, NotFound
from hmi.jobs.runtime.board import Board, read_pacing
from hmi.jobs.runtime.context import Body, ForPrimary, JobContext, JobStopped
from hmi.jobs.runtime.discarding import discard
from hmi.jobs.runtime.folders import JobFolder
from hmi.resident import peak_resident
from hmi.stores.bucket import bucket_of
from hmi.stores.layout import Layout, open_layout, without_paths
from hmi.stores.plot.plots import as_hmi
from hmi.stores.records.claims import LostClaim
from hmi.stores.records.registry import Registry
from hmi.tenancy import default_limits
from plot_store import PlotStoreError
from plot_store.ground.holding import HOLDING

MAX_STALLED = 5
"""A job fails after this many deaths of its process without a checkpoint between them."""
DONE = 0
"""Exit code: the job has ended, or goes back to the queue."""
TAKEN = 75
"""Exit code: another process runs the job."""


def run_job(settings: Settings, job: str, bodies: Mapping[JobKind, Body]) -> int:
    """Take the job, run it until it ends or is stopped, and return the exit code.
    Raises NotFound, Damaged."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C, by cancelling the job
    layout = open_layout(settings.data)
    # The process that started this one has checked all pages, for which it read every tenant's records.
    bucket, limits = bucket_of(settings), default_limits(settings)
    journal = None if bucket is None else bucket.journal
    registry = Registry.open(layout.registry, defaults=limits, checked=True, journal=journal, claim=job)
    folder = JobFolder(layout.jobs, registry.job(job).job, bucket)
    with folder.try_lock() as got:
        if not got:
            return TAKEN
        try:
            record = _claim(registry, job)
        except LostClaim:
            return TAKEN
        if record.state == "running":
            ctx = JobContext(record, settings, registry, stopping=stop.is_set)
            ctx.resume()
            _attempt(ctx, folder, bodies)
        after_end(registry, folder, job)
    registry.close()
    return DONE


def say_holding(data: Path, job: str) -> None:
    """Say on the job's board from now on when this process holds a lock, so that it is not stopped then.
    Raises NotFound for an impossible id, OSError."""
    HOLDING.watch(Board(JobFolder(Layout(data).jobs, job).board).set_holding)


def put_back(registry: Registry, job: str, *, crashed: bool = True, of: str | None = None) -> JobRecord:
    """Queue again, or end, a job that is `running` but has no process. of: the server that had it; None: this
    one. Nothing happens if another one has it by now.

    The caller holds the job's lock. With crashed=False (an orderly stop) no attempt is counted. A
    crash adds to the count of deaths, which each new checkpoint resets: a server may die often
    while a long job makes progress. Any server may take the job then. Raises NotFound.
    """

    holder = of or registry.node()

    def change(record: JobRecord) -> JobRecord:
        if holder and record.node not in (None, holder):
            return record
        if record.state == "queued" and not crashed:
            return record.model_copy(update={"node": None})  # it was taken, and not yet begun
        if record.state != "running":
            return record
        if record.cancel_requested:
            return _ended(record, "cancelled")
        if not crashed:
            return record.model_copy(
                update={"state": "queued", "attempts": record.attempts - 1, "node": None}
            )
        stalled = record.stalled + 1
        if stalled >= MAX_STALLED:
            message = (
                f"its process died {stalled} times in a row without reaching another checkpoint: see "
                "the job's log, and check memory and disk"
            )
            return _ended(record, "failed", error={"kind": "interrupted", "message": message})
        return record.model_copy(update={"state": "queued", "stalled": stalled, "node": None})

    return registry.update_job(job, change)


def after_end(registry: Registry, folder: JobFolder, job: str) -> None:
    """Free what an ended job no longer needs, or everything of a deleted job. The caller holds its lock. What
    the bucket has goes at the primary, which first takes the log from there."""
    if not registry.is_primary():
        folder = folder.here_only()
    if not registry.has_job(job):
        folder.remove()
        registry.forget_gone(job)
        return
    record = registry.job(job)
    if record.state in ENDED:
        # Discard before tidying: if it fails, the job's input stays, by which the hourly cleaning
        # finds the job again.
        discard(registry, Layout(folder.path.parent.parent), record)
        folder.tidy()


def _claim(registry: Registry, job: str) -> JobRecord:
    """Mark the job as running, unless it has ended. The caller holds its lock.

    Raises LostClaim if servers share the registry, and this one has not taken the job.
    """
    put_back(registry, job)

    def change(record: JobRecord) -> JobRecord:
        if record.state != "queued":
            return record
        started = record.started or now()
        return record.model_copy(
            update={"state": "running", "started": started, "attempts": record.attempts + 1}
        )

    return registry.update_job(job, change)


def _attempt(ctx: JobContext, folder: JobFolder, bodies: Mapping[JobKind, Body]) -> None:
    """Run the body and record how it ended."""
    job = ctx.job.job

    def end(change: Callable[[JobRecord], JobRecord]) -> None:
        ctx.tell_last()
        ctx.registry.update_job(job, change)

    try:
        try:
            missing = folder.missing(ctx.job.spec.get("inputs", []))
            if missing:
                raise Damaged(f"input {missing[0]!r} of the job is missing on disk: submit the job again")
            ctx.publish_made()
            result = bodies[ctx.job.kind](ctx)
            end(lambda r: _ended(r, "succeeded", result=result, cost=_cost(folder)))
        except ForPrimary as left:
            ctx.keep()
            end(left.hand_over)
        except JobStopped:
            ctx.keep()
            put_back(ctx.registry, job, crashed=False)
        except JobCancelled:
            end(lambda r: _ended(r, "cancelled", cost=_cost(folder)))
        except Exception as error:
            described = describe(error, ctx.log)
            described["message"] = without_paths(described["message"], ctx.settings)
            end(lambda r: _ended(r, "failed", error=described, cost=_cost(folder)))
    except LostClaim as error:
        ctx.log(error.message)  # another server runs the job by now, and records how it ends
    except NotFound:
        if ctx.registry.has_job(job):
            raise
        # The tenant was deleted, and the job's record with it: there is nothing to record.
    finally:
        ctx.close()


def describe(error: Exception, log: Callable[[str], None]) -> dict[str, Any]:
    """The error for the job's record. An unexpected error is written to `log` with its traceback."""
    if isinstance(error, PlotStoreError):
        error = as_hmi(error)
    if isinstance(error, HmiError) and error.kind != "internal":
        return {**error.details, "kind": error.kind, "message": error.message}
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return {
            "kind": "storage_full",
            "message": "no room left on the disk: free some space and submit the job again",
        }
    text = "".join(traceback.format_exception(error))
    try:
        log(text)
    except OSError:
        # The log may be on the full or failed disk.
        sys.stderr.write(text)
    # The full text of an OSError names a file, which users must not see.
    text = (error.strerror or "") if isinstance(error, OSError) else str(error)
    return {"kind": "internal", "message": f"{type(error).__name__}: {text}; the job's log has the details"}


def _ended(record: JobRecord, state: str, **outcome: Any) -> JobRecord:
    """The record in the end state `state`; unchanged if it has ended already. Raises ValueError for
    a result that is not JSON."""
    if record.state in ENDED:
        return record
    return JobRecord.model_validate({**record.model_dump(), "state": state, "ended": now(), **outcome})


def _cost(folder: JobFolder) -> JobCost:
    """The resources that this process used, so those of one attempt at the job."""
    pacing = read_pacing(folder.board)
    return JobCost(
        cpu_ms=round(time.process_time() * 1000),
        peak_bytes=peak_resident(),
        paused_ms=0 if pacing is None else pacing.paused_ms,
    )
