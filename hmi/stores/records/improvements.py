"""The background job `improve` of each model, which the model's record names: at most one is live.

A job of an older version is pointless once another version answers, so the same transaction stops it.
"""

from __future__ import annotations

from hmi.core import Improvement, JobRecord, ModelId, ModelRecord, now
from hmi.stores.records.job_table import asked_to_stop, put_job
from hmi.stores.records.sealed import RegistryTxn
from hmi.stores.records.table import JOB, MODEL, RecordTable


def queue(table: RecordTable, txn: RegistryTxn, job: JobRecord, model: ModelRecord, version: int) -> bool:
    """Store a job that is to improve a version, and name it in the model's record.

    Returns False, without a change, if another version answers by now, or if a job of this version was
    queued already: a version is improved once.
    """
    old = model.improvement
    if model.current != version or (old is not None and old.version == version):
        return False
    stop(table, txn, old, f"version {version} was trained since")
    put_job(table, txn, job)
    improvement = Improvement(job=job.job, version=version, queued=job.created)
    _put(table, txn, model.model_copy(update={"improvement": improvement}))
    return True


def superseded(table: RecordTable, txn: RegistryTxn, old: ModelRecord, new: ModelRecord) -> ModelRecord:
    """Return `new` after the job of `old` was stopped, if `new` answers with another job's version."""
    found = old.improvement
    if found is None or found.ended is not None or new.current == old.current or new.live.job == found.job:
        return new
    why = f"superseded: version {new.current} answers since"
    if not stop(table, txn, found, why):
        return new
    return new.model_copy(update={"improvement": found.model_copy(update={"ended": now(), "why": why})})


def stop(table: RecordTable, txn: RegistryTxn, improvement: Improvement | None, why: str) -> bool:
    """Ask a job to stop, and note the reason in its record. Returns whether it was live."""
    if improvement is None:
        return False
    record = table.get(txn, JOB + improvement.job, JobRecord)
    asked = None if record is None else asked_to_stop(record)
    if asked is None or asked == record:
        return False
    put_job(table, txn, asked.model_copy(update={"result": {"reason": why}}))
    return True


def _put(table: RecordTable, txn: RegistryTxn, model: ModelRecord) -> None:
    table.put(txn, MODEL + str(ModelId(model.tenant, model.name)), model)
