"""Jobs in the registry: one live job for a target, and which changes of state are possible."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime

from hmi.core import ENDED, JobRecord, ModelId, now
from hmi.errors import Conflict, NotFound, QuotaExceeded
from hmi.stores.ledger import Txn
from hmi.stores.table import GONE, JOB, LIVE, Table

_TARGET = {"import_root": "name", "build_plot": "domain", "fine_tune": "model", "compact_plot": "domain"}
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def check_job_id(job: str) -> str:
    """The id itself; NotFound for what cannot be one. Whatever passes is safe as a folder's name."""
    if not _JOB_ID.fullmatch(job):
        raise NotFound(f"there is no job {job[:80]!r}: check the id")
    return job


def target_of(job: JobRecord) -> str | None:
    """The root, domain or model that a job makes."""
    value = job.spec.get(_TARGET[job.kind])
    return None if value is None else str(value)


def get_job(table: Table, txn: Txn, job: str) -> JobRecord:
    record = table.get(txn, JOB + check_job_id(job), JobRecord)
    if record is None:
        raise NotFound(f"there is no job {job!r}: check the id")
    return record


def put_job(table: Table, txn: Txn, record: JobRecord) -> None:
    table.put(txn, JOB + check_job_id(record.job), record)
    if record.state in ENDED:
        txn.delete(LIVE + record.job)
    else:
        txn.put(LIVE + record.job, b"")


def add_job(table: Table, txn: Txn, record: JobRecord, tenant_limit: int | None) -> None:
    """Put a new job; Conflict where another one is at work on the same root, domain or model.

    QuotaExceeded where its tenant has `tenant_limit` live ones already.
    """
    target, live = target_of(record), live_jobs(table, txn)
    if tenant_limit is not None and sum(other.tenant == record.tenant for other in live) >= tenant_limit:
        raise QuotaExceeded(
            f"tenant {record.tenant} has {tenant_limit} jobs queued or running: wait for one to end, or cancel one",
            limit=tenant_limit,
        )
    for other in live:
        if other.job == record.job:
            raise Conflict(f"job {record.job} exists already")
        if target is not None and (other.kind, target_of(other)) == (record.kind, target):
            raise Conflict(f"job {other.job} {_doing(other)} {target}: wait for its end, or cancel it", job=other.job)
    put_job(table, txn, record)


def _doing(job: JobRecord) -> str:
    if job.state == "running":
        return "is at work on"
    return "was interrupted, and is still to make" if job.attempts else "is queued to make"


def live_jobs(table: Table, txn: Txn) -> list[JobRecord]:
    """Queued and running jobs, the oldest first."""
    found = [table.get(txn, JOB + job, JobRecord) for job in txn.keys(LIVE)]
    return sorted((r for r in found if r is not None), key=_age)


def all_jobs(table: Table, txn: Txn) -> list[JobRecord]:
    return sorted(table.all(txn, JOB, JobRecord), key=_age)


def update_job(table: Table, txn: Txn, job: str, change: Callable[[JobRecord], JobRecord]) -> JobRecord:
    old = get_job(table, txn, job)
    new = change(old)
    assert new.job == old.job, "a change must not rename a job"
    if new != old:
        put_job(table, txn, new)
    return new


def asked_to_stop(record: JobRecord) -> JobRecord:
    """A queued job ends at once; a running one is told; one that has ended stays as it is."""
    if record.state == "queued":
        return record.model_copy(update={"state": "cancelled", "cancel_requested": True, "ended": now()})
    if record.state == "running":
        return record.model_copy(update={"cancel_requested": True})
    return record


def cancel_for_model(table: Table, txn: Txn, model: ModelId) -> None:
    for record in live_jobs(table, txn):
        if record.kind == "fine_tune" and target_of(record) == str(model):
            put_job(table, txn, asked_to_stop(record))


def drop_jobs_of(table: Table, txn: Txn, tenant: str) -> list[str]:
    """Remove a tenant's jobs. One that runs finds its mark in GONE and cannot publish any more."""
    dropped = []
    for record in all_jobs(table, txn):
        if record.tenant == tenant:
            if record.state not in ENDED:
                txn.put(GONE + record.job, b"")
            txn.delete(JOB + record.job)
            txn.delete(LIVE + record.job)
            dropped.append(record.job)
    return dropped


def old_jobs(table: Table, txn: Txn, keep: int, day: datetime, month: datetime) -> list[str]:
    """Jobs that ended before `month`, or before `day` with `keep` others that ended later."""
    ended = sorted(((_end(r), r.job) for r in all_jobs(table, txn) if r.state in ENDED), reverse=True)
    return [job for i, (at, job) in enumerate(ended) if at < (day if i >= keep else month)]


def drop_jobs(txn: Txn, jobs: list[str]) -> None:
    for job in jobs:
        txn.delete(JOB + job)


def users_of_domain(table: Table, txn: Txn, domain: str) -> list[str]:
    """Live jobs that read or make this domain or one below it."""
    found = []
    for record in live_jobs(table, txn):
        used = str(record.spec.get("domain") or record.spec.get("name") or "")
        if used == domain or used.startswith(f"{domain}/"):
            found.append(record.job)
    return found


def _end(record: JobRecord) -> datetime:
    return datetime.fromisoformat(record.ended or record.created)


def _age(record: JobRecord) -> tuple[str, str]:
    return record.created, record.job
