"""Checks of what a tenant stores against its limits: the number of its models, and their bytes.

All checks run in the transaction of the change, so that changes at once cannot exceed a limit together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hmi.core import JobRecord, JobState, ModelId, ModelRecord, TenantLimits
from hmi.errors import QuotaExceeded
from hmi.stores.records import background
from hmi.stores.records.job_table import live_jobs, target_of
from hmi.stores.records.sealed import RegistryTxn
from hmi.stores.records.table import FILE, FILE_OF, JOB, MODEL, RecordTable
from hmi.tenancy import FileRecord

NEW = ("create", "import")
"""The modes of a fine-tuning job that make a new model."""
LIVE_STATES: tuple[JobState, ...] = ("queued", "running")


@dataclass(frozen=True)
class Stored:
    """The number of a tenant's models, and their bytes."""

    models: int
    model_bytes: int
    """All versions of all models."""
    file_bytes: int
    """Files that are kept for later jobs."""
    row_bytes: int = 0
    """Rows that are kept for jobs `improve`."""

    @property
    def bytes(self) -> int:
        """All of them."""
        return self.own_bytes + self.row_bytes

    @property
    def own_bytes(self) -> int:
        """Models and files. The tenant's own work is measured by these: rows for a job that the tenant did
        not start never keep it from anything."""
        return self.model_bytes + self.file_bytes


def stored_by(table: RecordTable, txn: RegistryTxn, tenant: str) -> Stored:
    """Return what a tenant stores."""
    models = table.all(txn, MODEL, ModelRecord, below=f"{tenant}.", tolerant=True)
    files = (table.get(txn, FILE + name, FileRecord) for name in txn.keys(f"{FILE_OF}{tenant}/"))
    size = sum(file.bytes for file in files if file is not None)
    return Stored(len(models), sum(map(_bytes_of, models)), size, _row_bytes(table, txn, tenant))


def check_publication(
    table: RecordTable, txn: RegistryTxn, limits: TenantLimits, new: ModelRecord, old: ModelRecord | None
) -> None:
    """Raise QuotaExceeded if replacing `old` (None: no such model yet) by `new` would exceed the limits."""
    if limits.models is None and limits.bytes is None:
        return
    stored = stored_by(table, txn, new.tenant)
    if old is None:
        _check_models(new.tenant, stored.models, limits)
    more = _bytes_of(new) - (0 if old is None else _bytes_of(old))
    _check_bytes(new.tenant, stored.own_bytes, more, limits)


def check_job(table: RecordTable, txn: RegistryTxn, limits: TenantLimits, job: JobRecord) -> None:
    """Raise QuotaExceeded for a fine-tuning job whose result could not be published, or a job `improve` whose
    rows find no room beside what the tenant stores.

    Other live jobs that make new models count as models. Nobody knows yet how large the result will be, so a
    job is refused only if nothing more may be stored.
    """
    if job.tenant is None or (limits.models is None and limits.bytes is None):
        return
    if job.kind == "improve":
        _check_rows(table, txn, limits, job, job.tenant)
    if job.kind != "fine_tune":
        return
    old = table.get(txn, _model_of(job), ModelRecord)
    if old is not None and any(version.job == job.job for version in old.versions):
        return  # a job that was killed after it had published
    stored = stored_by(table, txn, job.tenant)
    if job.spec.get("mode") in NEW:
        live = live_jobs(table, txn, tolerant=True, behind=False)
        others = (other for other in live if other.tenant == job.tenant)
        made = sum(o.spec.get("mode") in NEW and _is_new(txn, o) for o in others if o.job != job.job)
        _check_models(job.tenant, stored.models + made, limits)
    _check_bytes(job.tenant, stored.own_bytes, 1, limits)


def check_file(table: RecordTable, txn: RegistryTxn, limits: TenantLimits, file: FileRecord) -> None:
    """Raise QuotaExceeded if keeping this file would exceed the tenant's limit."""
    if file.tenant is not None and limits.bytes is not None:
        _check_bytes(file.tenant, stored_by(table, txn, file.tenant).own_bytes, file.bytes, limits)


def _check_rows(
    table: RecordTable, txn: RegistryTxn, limits: TenantLimits, job: JobRecord, tenant: str
) -> None:
    """Raise QuotaExceeded if the rows of a job `improve` and one byte more find no room."""
    have = stored_by(table, txn, tenant).bytes
    known = txn.get(JOB + job.job) is not None  # then its rows are counted already
    _check_bytes(tenant, have, 1 if known else _rows_of(job) + 1, limits)


def _row_bytes(table: RecordTable, txn: RegistryTxn, tenant: str) -> int:
    """The bytes of the rows that wait for the tenant's jobs `improve`."""
    names = [job for state in LIVE_STATES for _, job in background.live(txn, state, tenant, tolerant=True)]
    found = (table.get(txn, JOB + name, JobRecord) for name in names)
    return sum(_rows_of(record) for record in found if record is not None)


def _rows_of(job: JobRecord) -> int:
    return int(job.spec.get("row_bytes", 0))


def _check_models(tenant: str, have: int, limits: TenantLimits) -> None:
    if limits.models is not None and have >= limits.models:
        raise QuotaExceeded(
            f"tenant {tenant} has {have} models, those in the making included, and may have "
            f"{limits.models}: delete one, or ask the administrator for more",
            **_details("models", limits.models, have),
        )


def _check_bytes(tenant: str, have: int, more: int, limits: TenantLimits) -> None:
    if limits.bytes is not None and more > 0 and have + more > limits.bytes:
        raise QuotaExceeded(
            f"tenant {tenant} stores {have} bytes, and with this more than the {limits.bytes} that it may "
            "store: delete models or files, or ask the administrator for more",
            **_details("bytes", limits.bytes, have),
        )


def _details(quota: str, limit: int, used: int) -> dict[str, Any]:
    """The details of the error. Time alone does not cure it, so there is no `retry_after_s`."""
    return {"quota": quota, "limit": limit, "used": used, "retry_after_s": None}


def _is_new(txn: RegistryTxn, job: JobRecord) -> bool:
    """Return whether the job's model does not exist yet."""
    return txn.get(_model_of(job)) is None


def _model_of(job: JobRecord) -> str:
    """The key of the model that a fine-tuning job makes or changes."""
    return MODEL + str(ModelId.parse(target_of(job) or ""))


def _bytes_of(model: ModelRecord) -> int:
    return sum(version.bytes for version in model.versions)
