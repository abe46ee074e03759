"""The registry of roots, tenants, keys, models and jobs. A change takes effect when it is published here.

The registry is one LMDB environment that processes share. Every change is one durable transaction.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from hmi.core import (
    Depth,
    JobKind,
    JobRecord,
    JobState,
    KeyRecord,
    ModelId,
    ModelRecord,
    ModelVersion,
    RootRecord,
    TenantLimits,
    TenantRecord,
    check_name,
)
from hmi.errors import Conflict, NotFound
from hmi.stores.journal.journal import Journal
from hmi.stores.layout import refuse_lost_registry
from hmi.stores.records import (
    background,
    claims,
    file_table,
    job_table,
    key_table,
    model_table,
    nodes,
    once_table,
    tenant_room,
)
from hmi.stores.records.key_table import KeyRing
from hmi.stores.records.registry_database import FIRST_MAP, RegistryDatabase
from hmi.stores.records.rooms import Rooms
from hmi.stores.records.sealed import RegistryTxn
from hmi.stores.records.table import GONE, JOB, JOBS_INDEXED, MODEL, ROOT, TENANT
from hmi.stores.records.whole_registry import WholeRegistry
from hmi.tenancy import NO_LIMITS, FileRecord

DAY_S = 86_400.0
KEPT_JOBS = 1000
T = TypeVar("T")


class Registry(WholeRegistry):
    """The registry of one data folder. Thread-safe.

    Reads are consistent snapshots of a memory map and take microseconds.
    """

    def __init__(
        self, database: RegistryDatabase, defaults: TenantLimits = NO_LIMITS, claim: str | None = None
    ) -> None:
        """`defaults` are the limits of tenants that have none of their own. claim: see `open`."""
        super().__init__(database)
        self.defaults, self._claim = defaults, claim
        self.key_ring = KeyRing(database, self._table)
        self.rooms = Rooms(database, self._table, defaults)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        first_map: int = FIRST_MAP,
        defaults: TenantLimits = NO_LIMITS,
        checked: bool = False,
        journal: Journal | None = None,
        claim: str | None = None,
    ) -> Registry:
        """Open the registry in the folder `path`, creating it if needed. checked: see
        `RegistryDatabase.open`. journal: that by which nodes share it; None: it is this folder's own. claim:
        the job whose process this is; if nodes share the registry, it changes it only while this node has the
        job. Raises Damaged, StorageFull, InvalidInput (the journal is of another registry), Unavailable."""
        path.mkdir(parents=True, exist_ok=True)
        refuse_lost_registry(path)
        registry = cls(RegistryDatabase.open(path, first_map, checked=checked), defaults, claim)
        try:
            if journal is not None:
                fence = claims.by_primary if claim is None else claims.by_holder(claim)
                registry._database.follow(journal, fence)
            registry._index_jobs()
        except BaseException:
            registry.close()
            raise
        return registry

    def close(self) -> None:
        self._database.release()

    # Roots

    def roots(self, *, tolerant: bool = False) -> list[RootRecord]:
        return self._database.read(lambda t: self._table.all(t, ROOT, RootRecord, tolerant=tolerant))

    def root(self, name: str) -> RootRecord:
        """Raises NotFound."""
        key = ROOT + check_name(name, "root")
        found = self._database.read(lambda t: self._table.get(t, key, RootRecord))
        if found is None:
            raise NotFound(f"there is no root {name!r}: import it first", field="root")
        return found

    def full_root(self, name: str) -> RootRecord | None:
        """The root of the same source without lower layers, which may be itself; None: there is none.

        Raises NotFound.
        """
        root = self.root(name)
        if not root.split:
            return root
        source = root.source.get("sha256")
        same = [r for r in self.roots(tolerant=True) if not r.split and r.source.get("sha256") == source]
        return min(same, key=lambda r: r.created, default=None)

    def put_root(self, record: RootRecord) -> None:
        key = ROOT + check_name(record.name, "root")
        self._database.write(lambda t: self._table.put(t, key, record))

    def delete_root(self, name: str) -> bool:
        """Delete a root. Returns whether it existed."""
        key = ROOT + check_name(name, "root")
        return self._database.write(lambda t: t.delete(key))

    # Tenants and keys

    def tenants(self) -> list[TenantRecord]:
        return self._database.read(lambda t: self._table.all(t, TENANT, TenantRecord))

    def count_tenants(self) -> int:
        """The number of tenants, without parsing their records."""
        return self._database.read(lambda t: len(t.keys(TENANT)))

    def tenant(self, name: str) -> TenantRecord:
        """Raises NotFound."""
        return self._database.read(lambda t: model_table.get_tenant(self._table, t, name))

    def create_tenant(self, record: TenantRecord, key: KeyRecord) -> None:
        """Create a tenant and its first key in one transaction. Raises Conflict if the name is taken."""
        assert key.tenant == record.tenant, "a tenant's first key is its own"

        def body(txn: RegistryTxn) -> None:
            name = TENANT + check_name(record.tenant, "tenant")
            if txn.get(name) is not None:
                raise Conflict(
                    f"tenant {record.tenant!r} exists already: choose another name", field="tenant"
                )
            self._table.put(txn, name, record)
            key_table.put_key(self._table, txn, key)

        self._database.write(body)

    def update_tenant(self, name: str, change: Callable[[TenantRecord], TenantRecord]) -> TenantRecord:
        """Apply `change` to a tenant's record in one transaction, and return the result. Raises NotFound."""

        def body(txn: RegistryTxn) -> TenantRecord:
            record = change(model_table.get_tenant(self._table, txn, name))
            self._table.put(txn, TENANT + name, record)
            return record

        return self._database.write(body)

    def delete_tenant(self, name: str) -> tuple[list[ModelRecord], list[str], list[str], list[str]]:
        """Remove a tenant with its models, keys, jobs and files. Raises NotFound.

        Returns (models, key ids, job ids, file ids).
        """

        def body(txn: RegistryTxn) -> tuple[list[ModelRecord], list[str], list[str], list[str]]:
            model_table.get_tenant(self._table, txn, name)
            models = self._table.all(txn, MODEL, ModelRecord, below=f"{name}.")
            for model in models:
                txn.delete(model_table.model_key(ModelId(model.tenant, model.name)))
            keys = [k.key_id for k in key_table.keys_of(self._table, txn, name)]
            for key_id in keys:
                key_table.revoke_key(self._table, txn, key_id)
            jobs = job_table.drop_jobs_of(self._table, txn, name)
            files = file_table.drop_files_of(txn, name)
            txn.delete(TENANT + name)
            return models, keys, jobs, files

        return self._database.write(body)

    def keys(self, tenant: str | None) -> list[KeyRecord]:
        """The keys of a tenant, or with None the administrator's."""
        return self._database.read(lambda t: key_table.keys_of(self._table, t, tenant))

    def put_key(self, record: KeyRecord, limit: int | None = None) -> None:
        """Store a key. Raises NotFound for an unknown tenant, QuotaExceeded if it has `limit` keys."""

        def body(txn: RegistryTxn) -> None:
            if record.tenant is not None:
                model_table.get_tenant(self._table, txn, record.tenant)
            key_table.check_count(self._table, txn, record.tenant, limit)
            key_table.put_key(self._table, txn, record)

        self._database.write(body)

    def revoke_key(self, key_id: str) -> KeyRecord:
        """Raises NotFound."""
        return self._database.write(lambda t: key_table.revoke_key(self._table, t, key_id))

    def find_key(self, sha256: str) -> KeyRecord | None:
        """The key with this SHA-256 (64 hexadecimal digits); None if there is none."""
        found = self._database.read(lambda t: key_table.find_key(self._table, t, sha256))
        # The tree search takes varying time, but over hashes, which a caller cannot choose. The comparison of
        # the whole hash takes constant time.
        return found if found is not None and hmac.compare_digest(found.sha256, sha256) else None

    def any_keys(self) -> bool:
        return self._database.read(key_table.any_keys)

    # Models

    def models(
        self,
        tenant: str | None = None,
        after: ModelId | str | None = None,
        limit: int | None = None,
        *,
        tolerant: bool = False,
    ) -> list[ModelRecord]:
        """Models by ascending `tenant.name`, only those past `after`.

        Raises Damaged if one of them is damaged or lost; a tolerant call skips it.
        """
        below = "" if tenant is None else f"{check_name(tenant, 'tenant')}."
        start = None if after is None else str(after)
        return self._database.read(
            lambda t: self._table.all(
                t, MODEL, ModelRecord, below=below, after=start, limit=limit, tolerant=tolerant
            )
        )

    def count_models(self, tenant: str | None = None) -> int:
        """The number of models, of one tenant or of all, without parsing their records."""
        below = "" if tenant is None else f"{check_name(tenant, 'tenant')}."
        return self._database.read(lambda t: len(t.keys(MODEL + below, tolerant=True)))

    def model(self, model: ModelId) -> ModelRecord:
        """Raises NotFound."""
        return self._database.read(lambda t: model_table.get_model(self._table, t, model))

    def publish_model(self, model: ModelId, version: ModelVersion, depth: Depth | None = None) -> ModelRecord:
        """Add a version and let it answer unless it is held back. Idempotent for each job.

        depth: the model's choice from now on; None: it keeps its choice.

        The version's number 0 stands for the next number. The version's artefact must be durable. The model
        keeps 8 versions: the one that answers, and the newest others. Raises NotFound (no such tenant),
        Conflict (the number is taken), JobCancelled (the job was cancelled, or its model or tenant deleted),
        QuotaExceeded (the tenant has as many models or bytes as it may have).
        """
        return self._database.write(
            lambda t: model_table.publish_model(self._table, t, model, version, self.defaults, depth)
        )

    def set_current(self, model: ModelId, version: int) -> ModelRecord:
        """Let an older or newer version answer. Raises NotFound."""
        return self._database.write(lambda t: model_table.set_current(self._table, t, model, version))

    def change_model(self, model: ModelId, change: Callable[[ModelRecord], ModelRecord]) -> ModelRecord:
        """Replace the model's record by `change` of it, in one transaction. Raises NotFound."""
        return self._database.write(lambda t: model_table.change_model(self._table, t, model, change))

    def delete_model(self, model: ModelId) -> ModelRecord:
        """Remove a model and ask its jobs to stop. Returns its last record. Raises NotFound."""
        return self._database.write(lambda t: model_table.delete_model(self._table, t, model))

    # Jobs

    def jobs(self, tenant: str | None = None, state: JobState | None = None) -> list[JobRecord]:
        """Jobs, oldest first.

        Listing queued or running jobs is cheap however many jobs have ended. With a filter, damaged records
        are skipped, since their tenant and state are unknown. Without one, a damaged record raises Damaged.
        """
        read = job_table.live_jobs if state in ("queued", "running") else job_table.all_jobs
        tolerant = (tenant, state) != (None, None)
        found = self._database.read(lambda t: read(self._table, t, tolerant=tolerant))
        return [j for j in found if tenant in (None, j.tenant) and state in (None, j.state)]

    def page_of_jobs(
        self, tenant: str | None, state: JobState | None, kind: JobKind | None, after: str | None, limit: int
    ) -> tuple[list[JobRecord], str | None]:
        """Return up to `limit` jobs, newest first, and the `after` of the next page (None: this is the last).

        The cost of a page is bounded, so it may be short or empty without being the last.
        """
        return self._database.read(
            lambda t: job_table.page_of_jobs(self._table, t, tenant, state, kind, after, limit)
        )

    def count_jobs(self) -> dict[str, int]:
        """The number of jobs in each state, without reading the jobs. Damaged counts are left out."""
        return self._database.read(job_table.count_jobs)

    def count_background_jobs(self) -> dict[str, int]:
        """Return the number of background jobs in each state."""
        return self._database.read(job_table.count_background)

    def live_jobs(self, *, tolerant: bool = False, behind: bool = True) -> list[JobRecord]:
        """Queued and running jobs, oldest first. behind: whether background jobs are among them.
        Raises Damaged; a tolerant call skips damaged records."""
        return self._database.read(
            lambda t: job_table.live_jobs(self._table, t, tolerant=tolerant, behind=behind)
        )

    def background_jobs(self, state: JobState) -> list[tuple[str, str]]:
        """The background jobs in a live state, as (tenant, job), without reading the jobs."""
        return self._database.read(lambda t: background.live(t, state, tolerant=True))

    def job(self, job: str) -> JobRecord:
        """Raises NotFound."""
        return self._database.read(lambda t: job_table.get_job(self._table, t, job))

    def put_job(self, record: JobRecord) -> None:
        self._database.write(lambda t: job_table.put_job(self._table, t, record))

    def add_job(self, record: JobRecord, tenant_limit: int | None = None) -> None:
        """Store a new job.

        Raises Conflict if another live job works on the same root, domain or model; NotFound for an unknown
        tenant; QuotaExceeded if the tenant has `tenant_limit` live jobs, or started too many within a day,
        or has as many models or bytes as it may have.
        """

        def body(txn: RegistryTxn) -> None:
            self.rooms.check_job_in(txn, record)
            job_table.add_job(self._table, txn, record, tenant_limit)

        self._database.write(body)

    def check_job_quota(self, tenant: str | None, limit: int | None) -> None:
        """Raise QuotaExceeded if `add_job` would. Callers check before they write the job's files."""
        self._database.read(lambda t: job_table.check_quota(self._table, t, tenant, limit))

    def update_job(self, job: str, change: Callable[[JobRecord], JobRecord]) -> JobRecord:
        """Apply `change` to a job's record in one transaction, and return the result. Raises NotFound.

        If nodes share the registry, the one that has the job may do so, too; Unavailable at others.
        """
        fence = None if self._claim is not None else claims.by_holder_or_primary(job)
        return self._database.write(lambda t: job_table.update_job(self._table, t, job, change), fence)

    def take_job(self, job: str) -> bool:
        """Take a queued job for this node, before it is started. Returns False if this node may not have it.

        If nodes share the registry, exactly one gets it. Raises NotFound, Unavailable.
        """
        node = self.node()
        if not node:
            return True
        return self._database.write(lambda t: claims.take(self._table, t, job, node), claims.anyone)

    def take_back(self, part: str) -> bool:
        """Remove a job that counts a part of a corpus, so that no server does. Returns False if one has begun
        it. Raises Unavailable."""
        return self._database.write(lambda t: job_table.take_back(self._table, t, part))

    def has_claim(self, job: str) -> bool:
        """Return whether this node still has a job, beyond doubt. Always true if the registry is not shared.

        Raises Unavailable, Damaged."""
        if not self.node():
            return True
        self.catch_up()
        return self._database.read(claims.by_holder(job)) is None

    def has_job(self, job: str) -> bool:
        return self._database.read(lambda t: t.get(JOB + job) is not None)

    def drop_ended_jobs(self, keep: int = KEPT_JOBS) -> list[str]:
        """Delete jobs that ended 30 days ago, and those beyond the newest `keep` that ended a day ago.

        Returns their ids. Each job stays for at least a day: clients poll it, and a repeated request is
        answered with its job.
        """
        today = datetime.now(UTC)
        day, month = today - timedelta(days=1), today - timedelta(days=30)
        old = self._database.read(lambda t: job_table.old_jobs(self._table, t, keep, day, month))
        if old:
            self._database.write(lambda t: job_table.drop_jobs(self._table, t, old))
        return old

    def _index_jobs(self) -> None:
        if self._database.read(lambda t: t.get(JOBS_INDEXED)) is None:
            self._database.write(lambda t: job_table.index_jobs(self._table, t))

    # Files

    def add_file(self, record: FileRecord, limits: file_table.FileLimits | None) -> None:
        """Store a file's record. Raises NotFound (no such tenant), QuotaExceeded (beyond `limits`, or what
        the tenant may store)."""

        def body(txn: RegistryTxn) -> None:
            tenant_room.check_file(self._table, txn, self.rooms.limits_in(txn, record.tenant), record)
            file_table.add_file(self._table, txn, record, limits)

        self._database.write(body)

    def file(self, file: str) -> FileRecord | None:
        """The file's record; None if there is none."""
        return self._database.read(lambda t: file_table.find_file(self._table, t, file))

    def files(self, tenant: str | None) -> list[FileRecord]:
        """The files of a tenant, or with None the administrator's, oldest first."""
        return self._database.read(lambda t: file_table.files_of(self._table, t, tenant))

    def delete_file(self, file: str) -> FileRecord:
        """Raises NotFound."""
        return self._database.write(lambda t: file_table.drop_file(self._table, t, file))

    def forget_gone(self, job: str) -> None:
        """Delete the mark of a deleted tenant's job, after the job's process has ended."""
        self._database.write(lambda t: t.delete(GONE + job), claims.anyone)

    def while_unused(self, domain: str, act: Callable[[list[str], list[str]], T]) -> T:
        """Run `act(models, jobs)` in a write transaction, so that no user of `domain` can be added meanwhile.

        models: names of the models that depend on the domain. jobs: ids of its live jobs. Raises Unavailable
        before `act` if another node is the primary.
        """

        def body(txn: RegistryTxn) -> T:
            nodes.check_primary(txn)  # `act` may change nothing here, and much elsewhere
            records = self._table.all(txn, MODEL, ModelRecord)
            models = [
                f"{m.tenant}.{m.name}"
                for m in records
                if any(domain in (v.domain, v.root) for v in m.versions)
            ]
            return act(models, job_table.users_of_domain(self._table, txn, domain))

        return self._database.write(body)

    # Answers to repeated requests

    def remember(self, key: str, scope: str) -> dict[str, Any] | None:
        """Return the answer that `store` keeps for this key; None if there is none, or it has expired."""
        return self._database.read(lambda t: once_table.stored_answer(t, key, scope))

    def store(self, key: str, scope: str, response: dict[str, Any], ttl_s: float = DAY_S) -> None:
        """Store an answer for `ttl_s` seconds, and delete some that have expired."""
        self._database.write(lambda t: once_table.keep(t, key, scope, response, ttl_s))
