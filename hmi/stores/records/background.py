"""The index of background jobs that have not ended: by state, tenant and job.

A server may have thousands of them, one for each model, while other live jobs are few. So they are not among
the jobs that each new job is compared with, and the next one is found without reading the records.
"""

from __future__ import annotations

from hmi.core import BACKGROUND, ENDED, JobRecord
from hmi.stores.records.sealed import RegistryTxn
from hmi.stores.records.table import BACKGROUND_LIVE


def index(txn: RegistryTxn, old: JobRecord | None, new: JobRecord | None) -> None:
    """Update the index after a background job's record has changed. None: there is no record."""
    if old is not None and old.kind in BACKGROUND and old.state not in ENDED:
        txn.delete(_key(old))
    if new is not None and new.kind in BACKGROUND and new.state not in ENDED:
        txn.put(_key(new), b"")


def live(
    txn: RegistryTxn, state: str, tenant: str | None = None, *, tolerant: bool = False
) -> list[tuple[str, str]]:
    """Return the background jobs in a state, as (tenant, job), by tenant and then oldest first.

    tenant: only that tenant's. Raises Damaged; a tolerant call skips damaged entries.
    """
    prefix = f"{BACKGROUND_LIVE}{state}/"
    below = "" if tenant is None else f"{tenant}/"
    names = txn.keys(prefix + below, tolerant=tolerant)
    found = [(below + name).partition("/") for name in names]
    return [(owner, job) for owner, _, job in found]


def all_live(txn: RegistryTxn, *, tolerant: bool = False) -> list[str]:
    """Return the ids of all background jobs that have not ended."""
    return [job for state in ("queued", "running") for _, job in live(txn, state, tolerant=tolerant)]


def _key(job: JobRecord) -> str:
    return f"{BACKGROUND_LIVE}{job.state}/{job.tenant or ''}/{job.job}"
