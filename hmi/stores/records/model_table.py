"""Tenants' models in the registry: publication, version numbers, and the version that answers."""

from __future__ import annotations

import re
from collections.abc import Callable

from hmi.core import (
    Depth,
    JobRecord,
    ModelId,
    ModelRecord,
    ModelVersion,
    TenantLimits,
    TenantRecord,
    check_name,
)
from hmi.errors import Conflict, JobCancelled, NotFound
from hmi.stores.records import improvements
from hmi.stores.records.job_table import cancel_for_model
from hmi.stores.records.sealed import RegistryTxn
from hmi.stores.records.table import GONE, JOB, MODEL, TENANT, RecordTable
from hmi.stores.records.tenant_room import check_publication
from hmi.tenancy import NO_LIMITS

KEPT_VERSIONS = 8
"""The most versions that a model keeps, the one that answers included."""


_ARTEFACT = re.compile(rb'"artefact":"([0-9a-f]{64})"')


def artefacts(txn: RegistryTxn) -> set[str]:
    """The artefacts of all versions of all models, found in the records' text, since parsing takes longer.
    Raises Damaged."""
    found: set[bytes] = set()
    for _, raw in txn.items(MODEL):
        found.update(_ARTEFACT.findall(raw))
    return {name.decode() for name in found}


def model_key(model: ModelId) -> str:
    return f"{MODEL}{check_name(model.tenant, 'tenant')}.{check_name(model.name, 'model')}"


def get_model(table: RecordTable, txn: RegistryTxn, model: ModelId) -> ModelRecord:
    record = table.get(txn, model_key(model), ModelRecord)
    if record is None:
        raise NotFound(f"there is no model {str(model)!r}: check the name")
    return record


def get_tenant(table: RecordTable, txn: RegistryTxn, tenant: str) -> TenantRecord:
    record = table.get(txn, TENANT + check_name(tenant, "tenant"), TenantRecord)
    if record is None:
        raise NotFound(f"there is no tenant {tenant!r}: check the name, or create it first", field="tenant")
    return record


def publish_model(
    table: RecordTable,
    txn: RegistryTxn,
    model: ModelId,
    version: ModelVersion,
    defaults: TenantLimits = NO_LIMITS,
    depth: Depth | None = None,
) -> ModelRecord:
    """Add a version and let it answer, unless it is held back. Idempotent for each job.

    defaults: the limits of a tenant that has none of its own. depth: see `Registry.publish_model`.
    """
    old = table.get(txn, model_key(model), ModelRecord)
    versions = old.versions if old else ()
    if old is not None and any(v.job == version.job for v in versions):
        return old
    limits = get_tenant(table, txn, model.tenant).limits.over(defaults)
    _refuse_unwanted(table, txn, version.job)
    taken = {v.version for v in versions}
    number = version.version or max(taken, default=0) + 1
    if number in taken:
        raise Conflict(
            f"model {model} has a version {number} already: publish with version 0 to get the next number"
        )
    added = (*versions, version.model_copy(update={"version": number}))
    current = number if old is None or version.held_back is None else old.current
    # Keep the version that answers, however many were held back since.
    answers, others = ([v for v in added if (v.version == current) is same] for same in (True, False))
    kept = sorted([*answers, *others[-KEPT_VERSIONS + 1 :]], key=added.index)
    if old is None:
        record = ModelRecord(tenant=model.tenant, name=model.name, current=current, versions=tuple(kept))
    else:
        record = old.model_copy(update={"current": current, "versions": tuple(kept)})
        record = improvements.superseded(table, txn, old, record)
    if depth is not None and version.held_back is None:
        record = record.model_copy(update={"depth": depth})
    check_publication(table, txn, limits, record, old)
    table.put(txn, model_key(model), record)
    return record


def set_current(table: RecordTable, txn: RegistryTxn, model: ModelId, version: int) -> ModelRecord:
    old = get_model(table, txn, model)
    have = [v.version for v in old.versions]
    if version not in have:
        raise NotFound(
            f"model {model} has no version {version}: choose one of {', '.join(map(str, have))}",
            field="version",
        )
    record = improvements.superseded(table, txn, old, old.model_copy(update={"current": version}))
    table.put(txn, model_key(model), record)
    return record


def change_model(
    table: RecordTable, txn: RegistryTxn, model: ModelId, change: Callable[[ModelRecord], ModelRecord]
) -> ModelRecord:
    record = change(get_model(table, txn, model))
    table.put(txn, model_key(model), record)
    return record


def delete_model(table: RecordTable, txn: RegistryTxn, model: ModelId) -> ModelRecord:
    """Remove a model and stop the jobs that would publish it again."""
    old = get_model(table, txn, model)
    txn.delete(model_key(model))
    cancel_for_model(table, txn, model)
    improvements.stop(table, txn, old.improvement, "the model was deleted")
    return old


def _refuse_unwanted(table: RecordTable, txn: RegistryTxn, job: str) -> None:
    record = table.get(txn, JOB + job, JobRecord)
    if txn.get(GONE + job) is not None or (record is not None and record.cancel_requested):
        raise JobCancelled("the job was cancelled before it published: start it again if that was a mistake")
