"""The limits that hold for tenants, and what tenants store, in transactions of their own."""

from __future__ import annotations

from hmi.core import JobRecord, ModelId, TenantLimits
from hmi.stores.records import improvements
from hmi.stores.records.model_table import get_model, get_tenant
from hmi.stores.records.registry_database import RegistryDatabase
from hmi.stores.records.sealed import RegistryTxn
from hmi.stores.records.table import RecordTable
from hmi.stores.records.tenant_room import Stored, check_job, stored_by
from hmi.tenancy import NO_LIMITS


class Rooms:
    """The limits on what tenants store, and what they do store. Thread-safe."""

    def __init__(self, database: RegistryDatabase, table: RecordTable, defaults: TenantLimits) -> None:
        self._database, self._table, self._defaults = database, table, defaults

    def limits(self, tenant: str) -> TenantLimits:
        """The limits that hold for a tenant; None: there is no limit. Raises NotFound."""
        return self._database.read(lambda t: self.limits_in(t, tenant))

    def limits_in(self, txn: RegistryTxn, tenant: str | None) -> TenantLimits:
        """The same in a transaction. tenant: None: the administrator, who has no limits."""
        if tenant is None:
            return NO_LIMITS
        return get_tenant(self._table, txn, tenant).limits.over(self._defaults)

    def stored(self, tenant: str) -> Stored:
        """Return the models and bytes that a tenant stores. Raises NotFound."""

        def body(txn: RegistryTxn) -> Stored:
            get_tenant(self._table, txn, tenant)
            return stored_by(self._table, txn, tenant)

        return self._database.read(body)

    def check_job(self, job: JobRecord) -> None:
        """Raise QuotaExceeded if a job's result could not be published, as far as that is known."""
        self._database.read(lambda t: self.check_job_in(t, job))

    def check_job_in(self, txn: RegistryTxn, job: JobRecord) -> None:
        """The same in a transaction."""
        check_job(self._table, txn, self.limits_in(txn, job.tenant), job)

    def queue_improvement(self, job: JobRecord, model: ModelId, version: int) -> bool:
        """Store a job that is to improve a version (see `improvements.queue`). Returns whether it was stored.

        Raises NotFound (the tenant or the model is gone), QuotaExceeded (the rows find no room).
        """

        def body(txn: RegistryTxn) -> bool:
            self.check_job_in(txn, job)
            record = get_model(self._table, txn, model)
            return improvements.queue(self._table, txn, job, record, version)

        return self._database.write(body)
