"""Jobs in the registry: at most one live job of a kind for each root, domain or model.

"Live" means queued or running.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import islice, takewhile
from typing import get_args

from hmi.core import BACKGROUND, ENDED, JobKind, JobRecord, JobState, ModelId, now
from hmi.errors import Conflict, Damaged, NotFound, QuotaExceeded
from hmi.stores.records import background
from hmi.stores.records.sealed import RegistryTxn
from hmi.stores.records.table import (
    BACKGROUND_COUNT,
    BEHIND,
    GONE,
    JOB,
    JOB_COUNT,
    JOB_OF,
    JOBS_INDEXED,
    LIVE,
    RecordTable,
)

LOOKED_AT = 2000
"""The most records that one page of a list may read, whatever its filters."""

PER_DAY = 1000
"""The most jobs that a tenant with a quota may start within a day."""
DAY_S = 86_400.0
_TARGET = {
    "import_root": "name",
    "build_plot": "domain",
    "fine_tune": "model",
    "compact_plot": "domain",
    "erase": "domain",
    "profile_cascade": "model",
    "shard_root": "name",
    "backup": "folder",
    "improve": "model",
    "count_part": "domain",
}
_PART = "-part-"
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def check_job_id(job: str) -> str:
    """Return the id, which is then safe as a folder's name. Raises NotFound if it cannot be a job's id."""
    if not _JOB_ID.fullmatch(job):
        raise no_job(job)
    return job


def no_job(job: str) -> NotFound:
    """The error for an unknown job and for one that the caller may not see. The two must look the same."""
    return NotFound(f"there is no job {job[:80]!r}: check the id")


def job_id_at(at: float) -> str:
    """The prefix of ids of jobs created at this time (seconds since 1970). Ids sort by time."""
    return f"j{int(at * 1000):011x}"


def part_id(build: str, size: int, number: int) -> str:
    """The id of the job that counts a part of a build's corpus.

    It has the `size` of parts, in bytes. So an attempt at the build that cuts otherwise finds no part of one
    that cut so.
    """
    return f"{build}{_PART}{size}-{number}"


def target_of(job: JobRecord) -> str | None:
    """The root, domain or model that a job creates or changes."""
    value = job.spec.get(_TARGET[job.kind])
    return None if value is None else str(value)


def get_job(table: RecordTable, txn: RegistryTxn, job: str) -> JobRecord:
    record = table.get(txn, JOB + check_job_id(job), JobRecord)
    if record is None:
        raise no_job(job)
    return record


def put_job(table: RecordTable, txn: RegistryTxn, record: JobRecord) -> None:
    old = table.get(txn, JOB + check_job_id(record.job), JobRecord)
    table.put(txn, JOB + record.job, record)
    behind = record.kind in BACKGROUND
    if record.state in ENDED or behind:
        txn.delete(LIVE + record.job)
    else:
        txn.put(LIVE + record.job, b"")
    background.index(txn, old, record)
    txn.put(_of(record.tenant) + record.job, BEHIND if behind else b"")
    _count(table, txn, old, record)
    if record.kind == "build_plot" and record.state in ENDED:
        drop_parts(table, txn, record.job)


def drop_job(table: RecordTable, txn: RegistryTxn, job: str) -> None:
    """Remove a job's record and its index entries, if it exists."""
    old = table.get(txn, JOB + job, JobRecord)
    if old is not None:
        for key in (JOB + job, LIVE + job, _of(old.tenant) + job):
            txn.delete(key)
        background.index(txn, old, None)
        _count(table, txn, old, None)


def drop_parts(table: RecordTable, txn: RegistryTxn, build: str) -> None:
    """Remove the jobs that count parts of a build's corpus. One that runs ends at its next step."""
    for part in txn.keys(JOB + build + _PART, tolerant=True):
        drop_job(table, txn, build + _PART + part)


def take_back(table: RecordTable, txn: RegistryTxn, part: str) -> bool:
    """Remove a job that counts a part, unless its process has begun and has not failed. Returns whether it is
    gone.

    A server may have taken the job for a process that it is about to start. That process then finds no job.
    """
    record = table.get(txn, JOB + part, JobRecord)
    if record is not None and record.state in ("running", "succeeded"):
        return False
    drop_job(table, txn, part)
    return True


def index_jobs(table: RecordTable, txn: RegistryTxn) -> None:
    """Create the indexes that `put_job` maintains, in a registry of an earlier release. Idempotent."""
    if txn.get(JOBS_INDEXED) is not None:
        return
    for record in table.all(txn, JOB, JobRecord, tolerant=True):
        txn.put(_of(record.tenant) + record.job, b"")
    _count_anew(table, txn)
    txn.put(JOBS_INDEXED, b"")


def count_jobs(txn: RegistryTxn) -> dict[str, int]:
    """Return the number of jobs in each state. Omits damaged counts, which the next job change repairs."""
    return {state: int(raw) for state, raw in txn.items(JOB_COUNT, tolerant=True)}


def count_background(txn: RegistryTxn) -> dict[str, int]:
    """Return how many of the jobs in each state are background jobs. Omits damaged counts."""
    return {state: int(raw) for state, raw in txn.items(BACKGROUND_COUNT, tolerant=True)}


def page_of_jobs(
    table: RecordTable,
    txn: RegistryTxn,
    tenant: str | None,
    state: JobState | None,
    kind: JobKind | None,
    after: str | None,
    limit: int,
) -> tuple[list[JobRecord], str | None]:
    """Return up to `limit` jobs, newest first, and the `after` of the next page (None: this is the last).

    At most LOOKED_AT records are read, so a page may be short or empty without being the last.
    """
    live = state is not None and state not in ENDED
    names = txn.names_back(_of(tenant) if tenant is not None else JOB, after)
    if live and tenant is None:
        names = (job for job in _live_names(txn) if after is None or job < after)
    found: list[JobRecord] = []
    last = None
    for looked, job in enumerate(names):
        if len(found) == limit or looked == LOOKED_AT:
            return found, last
        last = job
        record = table.get(txn, JOB + job, JobRecord)
        if record is not None and state in (None, record.state) and kind in (None, record.kind):
            found.append(record)
    return found, None


def _live_names(txn: RegistryTxn) -> Iterator[str]:
    """The ids of all live jobs, newest first."""
    names = [*txn.names_back(LIVE), *background.all_live(txn, tolerant=True)]
    return iter(sorted(names, reverse=True))


def add_job(table: RecordTable, txn: RegistryTxn, record: JobRecord, tenant_limit: int | None) -> None:
    """Store a new job that is no background job (see `improvements`).

    Raises Conflict if another live job has the same target, and QuotaExceeded as `check_quota` does.
    """
    assert record.kind not in BACKGROUND, "a model's record names its background job: see `improvements`"
    target = target_of(record)
    check_quota(table, txn, record.tenant, tenant_limit)
    # Another tenant's damaged record must not keep this one from its work.
    for other in live_jobs(table, txn, tolerant=True, behind=False):
        if other.job == record.job:
            raise Conflict(f"job {record.job} exists already")
        if target is not None and target_of(other) == target and _exclude(other.kind, record.kind):
            raise Conflict(
                f"job {other.job} {_doing(other)} {target}: wait for its end, or cancel it", job=other.job
            )
    put_job(table, txn, record)


def _exclude(one: JobKind, other: JobKind) -> bool:
    """Return whether two jobs of these kinds must not share a target. A build could undo an erasure."""
    return one == other != "count_part" or {one, other} == {"build_plot", "erase"}


def _doing(job: JobRecord) -> str:
    if job.state == "running":
        return "is working on"
    return "was interrupted and will resume making" if job.attempts else "is queued to make"


def check_quota(table: RecordTable, txn: RegistryTxn, tenant: str | None, limit: int | None) -> None:
    """Raise QuotaExceeded if a tenant has `limit` live jobs, or has started PER_DAY jobs within a day.

    The daily count includes ended and cancelled jobs. Background jobs do not count, since the tenant did not
    start them. With `limit` None there is no quota.
    """
    if limit is None:
        return
    live = live_jobs(table, txn, tolerant=True, behind=False)
    if sum(job.tenant == tenant for job in live) >= limit:
        raise QuotaExceeded(
            f"tenant {tenant} has {limit} jobs queued or running: wait for one to end, or cancel one",
            quota="jobs",
            limit=limit,
        )
    yesterday = job_id_at(time.time() - DAY_S)
    today = takewhile(lambda job: job > yesterday, txn.names_back(_of(tenant)))
    own = (job for job in today if txn.get(_of(tenant) + job) != BEHIND)
    counted = list(islice(own, PER_DAY))
    if len(counted) == PER_DAY:
        oldest_s = int(counted[-1][1:12], 16) / 1000
        wait_s = max(1, math.ceil(oldest_s + DAY_S - time.time()))
        raise QuotaExceeded(
            f"tenant {tenant} has started {PER_DAY} jobs within a day, ended and cancelled ones included: "
            f"try again in {wait_s} s, or ask the administrator to start the job",
            quota="jobs_a_day",
            limit=PER_DAY,
            retry_after_s=wait_s,
        )


def live_jobs(
    table: RecordTable, txn: RegistryTxn, *, tolerant: bool = False, behind: bool = True
) -> list[JobRecord]:
    """Return queued and running jobs, oldest first. Raises Damaged; a tolerant call skips such records.

    behind: whether background jobs are among them. Without them the call is cheap however many wait.
    """
    names = txn.keys(LIVE, tolerant=tolerant)
    names += background.all_live(txn, tolerant=tolerant) if behind else []
    found = []
    for job in names:
        try:
            found.append(table.get(txn, JOB + job, JobRecord))
        except Damaged:
            if not tolerant:
                raise
    return sorted((r for r in found if r is not None), key=_age)


def all_jobs(table: RecordTable, txn: RegistryTxn, *, tolerant: bool = False) -> list[JobRecord]:
    return sorted(table.all(txn, JOB, JobRecord, tolerant=tolerant), key=_age)


def update_job(
    table: RecordTable, txn: RegistryTxn, job: str, change: Callable[[JobRecord], JobRecord]
) -> JobRecord:
    old = get_job(table, txn, job)
    new = change(old)
    assert new.job == old.job, "a change must not rename a job"
    if new != old:
        put_job(table, txn, new)
    return new


def asked_to_stop(record: JobRecord) -> JobRecord:
    """Return the record after a request to cancel: a queued job ends, a running one is asked to end, and an
    ended one does not change."""
    if record.state == "queued":
        return record.model_copy(update={"state": "cancelled", "cancel_requested": True, "ended": now()})
    if record.state == "running":
        return record.model_copy(update={"cancel_requested": True})
    return record


def cancel_for_model(table: RecordTable, txn: RegistryTxn, model: ModelId) -> None:
    for record in live_jobs(table, txn, tolerant=True, behind=False):
        if record.kind in ("fine_tune", "profile_cascade") and target_of(record) == str(model):
            put_job(table, txn, asked_to_stop(record))


def drop_jobs_of(table: RecordTable, txn: RegistryTxn, tenant: str) -> list[str]:
    """Remove a tenant's jobs and return their ids. A running one gets a mark in GONE and cannot publish."""
    dropped = txn.keys(_of(tenant))
    for job in dropped:
        record = table.get(txn, JOB + job, JobRecord)
        if record is not None and record.state not in ENDED:
            txn.put(GONE + job, b"")
        drop_job(table, txn, job)
    return dropped


def old_jobs(table: RecordTable, txn: RegistryTxn, keep: int, day: datetime, month: datetime) -> list[str]:
    """Ids of jobs that ended before `month`, or before `day` and are not among the newest `keep`."""
    ended = sorted(
        ((_end(r), r.job) for r in all_jobs(table, txn, tolerant=True) if r.state in ENDED), reverse=True
    )
    return [job for i, (at, job) in enumerate(ended) if at < (day if i >= keep else month)]


def drop_jobs(table: RecordTable, txn: RegistryTxn, jobs: list[str]) -> None:
    for job in jobs:
        drop_job(table, txn, job)


def users_of_domain(table: RecordTable, txn: RegistryTxn, domain: str) -> list[str]:
    """Ids of live jobs that read, create or change this domain or one below it."""
    found = []
    for record in live_jobs(table, txn):
        used = str(record.spec.get("domain") or record.spec.get("name") or "")
        if domain in (used, record.spec.get("root")) or used.startswith(f"{domain}/"):
            found.append(record.job)
    return found


def _end(record: JobRecord) -> datetime:
    return datetime.fromisoformat(record.ended or record.created)


def _age(record: JobRecord) -> tuple[str, str]:
    return record.created, record.job


def _of(tenant: str | None) -> str:
    return f"{JOB_OF}{tenant or ''}/"


def _count(table: RecordTable, txn: RegistryTxn, old: JobRecord | None, new: JobRecord | None) -> None:
    """Update the counts after a job's record has changed."""
    states = (None if old is None else old.state, None if new is None else new.state)
    if states[0] == states[1]:
        return
    behind = any(record is not None and record.kind in BACKGROUND for record in (old, new))
    try:
        for prefix in (JOB_COUNT, BACKGROUND_COUNT) if behind else (JOB_COUNT,):
            for state, step in zip(states, (-1, +1), strict=True):
                if state is not None:
                    txn.put(prefix + state, str(int(txn.get(prefix + state) or b"0") + step).encode())
    except Damaged:  # the counts can be computed again; damage to them must not block a job
        _count_anew(table, txn)


def _count_anew(table: RecordTable, txn: RegistryTxn) -> None:
    records = table.all(txn, JOB, JobRecord, tolerant=True)
    states = Counter(record.state for record in records)
    behind = Counter(record.state for record in records if record.kind in BACKGROUND)
    for state in get_args(JobState):
        txn.put(JOB_COUNT + state, str(states[state]).encode())
        txn.put(BACKGROUND_COUNT + state, str(behind[state]).encode())
