"""Which of several servers runs a job. Its record names the server: that is the server's claim.

A server takes a queued job by a change of the registry, so exactly one gets it. The job's process may then
change the registry exactly while the claim holds. That is looked at inside each of its transactions, so a
process whose job was given to another server, however late it wakes, changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from hmi.core import ELSEWHERE, ENDED, JobRecord
from hmi.errors import HmiError, Unavailable
from hmi.stores.records.job_table import get_job, put_job
from hmi.stores.records.nodes import NODE, is_primary, not_primary, primary_kinds
from hmi.stores.records.sealed import RegistryTxn
from hmi.stores.records.table import JOB, RecordTable, parsed

Fence = Callable[[RegistryTxn], HmiError | None]
"""Looks at a transaction before its body, and returns the error that a change is refused with, if it is."""


class LostClaim(Unavailable):
    """The job is this server's no more."""


def anyone(txn: RegistryTxn) -> HmiError | None:
    """Let every server make this change."""
    return None


def by_primary(txn: RegistryTxn) -> HmiError | None:
    """Let the primary make this change."""
    return None if is_primary(txn) else not_primary()


def by_holder(job: str) -> Fence:
    """Let the server make this change that has the job."""

    def fence(txn: RegistryTxn) -> HmiError | None:
        return None if _has(txn, job) else lost(job)

    return fence


def by_holder_or_primary(job: str) -> Fence:
    """Let the server that has the job make this change, or the primary."""
    return lambda txn: None if _has(txn, job) else by_primary(txn)


def lost(job: str) -> LostClaim:
    return LostClaim(f"job {job} is another server's by now, or was deleted: this server changes nothing")


def may_take(record: JobRecord, node: str, leads: bool, kinds: Collection[str]) -> bool:
    """Return whether the server of this id may start a queued job. node: "" if no servers share it. kinds:
    those that the primary shares with replicas."""
    if not node or record.node == node:
        return True
    elsewhere = record.kind in ELSEWHERE and record.kind in kinds and not record.for_primary
    return record.node is None and (leads or elsewhere)


def take(table: RecordTable, txn: RegistryTxn, job: str, node: str) -> bool:
    """Let the server of this id have a queued job, if it may. Returns whether it has it. Raises NotFound."""
    record = get_job(table, txn, job)
    if record.state != "queued" or not may_take(record, node, is_primary(txn), primary_kinds(txn)):
        return False
    if record.node != node:
        put_job(table, txn, record.model_copy(update={"node": node}))
    return True


def _has(txn: RegistryTxn, job: str) -> bool:
    body, node = txn.get(JOB + job), txn.get(NODE)
    if body is None or node is None:
        return False
    record = parsed(JOB + job, body, JobRecord)
    return record.node == node.decode() and record.state not in ENDED
