"""The manager: the API, the command line and the demo make all changes through it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hmi.config import Settings
from hmi.core import (
    DeletedParts,
    JobRecord,
    JobState,
    KeyRecord,
    ModelId,
    ModelRecord,
    Objective,
    Progress,
    Scope,
    Task,
    TenantLimits,
    TenantRecord,
)
from hmi.jobs.options import AS_IT_IS, Reading
from hmi.jobs.runtime.runner import JobRunner
from hmi.manager.cascades import CascadeInfo, Cascades
from hmi.manager.consistency import Consistency
from hmi.manager.domains import (
    ByteProgress,
    DomainInfo,
    DomainOperations,
    export_domain,
    import_domain,
    pull_domain,
    push_domain,
)
from hmi.manager.exchange import Exchange, ModuleFiles
from hmi.manager.following import Following
from hmi.manager.maintenance import Maintenance
from hmi.manager.models import ModelOperations, TokenProfiles, set_objective
from hmi.manager.parts import Parts
from hmi.manager.roots import RootOperations
from hmi.manager.tenants import TENANT_SCOPES, TenantOperations
from hmi.stores.bucket import bucket_of
from hmi.stores.layout import open_layout
from hmi.stores.plot.miss_files import MissFiles
from hmi.stores.plot.miss_recorder import MissRecorder
from hmi.stores.plot.plots import open_plots
from hmi.stores.plot.sharing import adopt
from hmi.stores.records.registry import Registry
from hmi.stores.root_files import RootFiles
from hmi.stores.tensors.adapter_store import LOWER_CURE, AdapterStore
from hmi.stores.tensors.samples import Samples
from hmi.tenancy import NO_LIMITS, default_limits
from plot_store import Transfer, VersionInfo


class Manager:
    """Opens a data folder and owns its stores. Thread-safe. For outside causes, methods raise only HmiError.

    A long operation returns a JobRecord at once; `runner.start()` or `runner.run_one(job)` does the work.
    """

    def __init__(self, settings: Settings, *, bodies: str | None = None) -> None:
        layout, bucket = open_layout(settings.data), bucket_of(settings)
        journal = None if bucket is None else bucket.journal
        with ExitStack() as undo:
            registry = Registry.open(layout.registry, defaults=default_limits(settings), journal=journal)
            undo.callback(registry.close)
            plots = open_plots(layout.plots, settings)
            undo.callback(plots.close)
            runner = JobRunner(registry, settings, bodies=bodies, housekeeping=self._housekeeping)
            adapters = AdapterStore(layout.adapters, bucket=bucket)
            lowers = AdapterStore(layout.lowers, LOWER_CURE, bucket)
            samples = Samples(layout.samples, bucket)
            self.root_files = RootFiles(layout, bucket, lambda: not registry.is_primary())
            self._undo = undo.pop_all()
        self.misses = MissRecorder(MissFiles(layout.misses))
        self.on_deleted: Callable[[DeletedParts], None] = lambda deleted: None
        """Called after each deletion, on its thread: a server lets its engine give back the memory."""
        self._parts = Parts(
            *(settings, layout, bucket, registry, plots, adapters, lowers, samples, self.root_files, runner),
            misses=self.misses,
            tell_deleted=lambda deleted: self.on_deleted(deleted),
        )
        self.following = None if bucket is None else Following(self._parts, self)
        """Keeps the server in step with others. None if its data folder is its own."""
        self.settings, self.registry, self.plots = settings, registry, plots
        self.fetching = None if bucket is None else plots.fetching(bucket.plots)
        """Reads PLOTs for the engine. None if they are all in the data folder."""
        self.adapters, self.lowers, self.samples, self.runner = adapters, lowers, samples, runner
        self._domains = DomainOperations(self._parts)
        runner.on_ended.append(self._domains.erased)
        self._models = ModelOperations(self._parts, self._domains)
        self._cascades = Cascades(self._parts)
        self.tokens = TokenProfiles(self._parts)
        self._exchange = Exchange(self._parts, self._domains)
        self.tenants = TenantOperations(self._parts)
        self.files = self.tenants.files
        self._roots = RootOperations(self._parts, self._domains)
        self.profiles, self.root_shards = self._roots.profiles, self._roots.shards
        self._consistency = Consistency(self._parts, self._roots)
        self.maintenance = Maintenance(self._parts, self._consistency.pinned_plots)

    def close(self) -> None:
        """Stop the jobs so that they can be resumed, and close the stores. A second call does nothing."""
        if self.following is not None:
            self.following.end()
        self.runner.stop()
        self.misses.stop()
        self._undo.close()

    # Nodes

    def adopt_plots(self) -> None:
        """Bring the PLOTs here and in the bucket together, when a primary starts; see `sharing.adopt`."""
        if self._parts.bucket is not None:
            adopt(self.plots, self._parts.bucket, self._consistency.pinned_plots())

    def follow_erasures(self) -> set[str]:
        """Erase from a replica's PLOTs what the primary erased; see `sharing.follow_erasures`.

        The engine reads the versions that changed again. Returns their ids.
        """
        return self._domains.follow_erasures(self.fetching)

    # Roots

    def import_root(
        self,
        name: str,
        source: str,
        *,
        split: int | None = None,
        texts: Mapping[str, Path | bytes] | None = None,
        alpha: float = 50,
        options: Mapping[str, Any] | None = None,
    ) -> JobRecord:
        """Import a pretrained model. texts: file name -> text; text-KIND.txt holds one kind of
        text, text-0.txt, text-1.txt, … are general.

        Raises InvalidInput, UnsupportedModel, Conflict (name taken), StorageFull.
        """
        return self._roots.import_root(name, source, split, texts or {}, alpha, options)

    def delete_root(self, name: str) -> None:
        """Remove a root, its PLOT and its files. Raises NotFound, Conflict (which names the
        domains, models or jobs that depend on it)."""
        self._roots.delete(name)

    # Domains

    def create_domain(
        self,
        domain: str,
        corpus: Path | bytes,
        *,
        alpha: float | None = None,
        pretrain: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> JobRecord:
        """Build a new domain. It stores the n-grams that cover `alpha` percent of occurrences, or
        those that fit `options["budget_bytes"]`; with neither, alpha is 50.

        Raises InvalidInput, Conflict (exists, or a job is at work on it), NotFound (parent), StorageFull.
        """
        return self._domains.create(domain, corpus, alpha, pretrain, options)

    def update_domain(
        self,
        domain: str,
        corpus: Path | bytes,
        *,
        alpha: float | None = None,
        pretrain: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> JobRecord:
        """Add a corpus. alpha=None keeps the current version's alpha or budget. Raises as `create_domain`."""
        return self._domains.update(domain, corpus, alpha, pretrain, options)

    def grow_domain(self, domain: str, *, min_count: int = 5) -> JobRecord:
        """Add the n-grams that the domain's texts missed at least `min_count` times since recording
        began or the domain last grew.

        Raises InvalidInput, NotFound, StorageFull, Conflict (recording is off, nothing was missed
        so often, or a job is at work on the domain).
        """
        return self._domains.grow(domain, min_count)

    def erase_from_domain(
        self,
        domain: str,
        *,
        text: Path | bytes | None = None,
        keep: Path | bytes | None = None,
        phrases: Sequence[str] = (),
        encoding: str | None = None,
        dry_run: bool = False,
    ) -> JobRecord:
        """Erase from all versions of a domain the n-grams of `text` that `keep` lacks, and those that contain
        a phrase; from its samples the passages of them; and the misses recorded for it.

        Raises InvalidInput, NotFound, Conflict (a job is at work on it), StorageFull.
        """
        return self._domains.erase(domain, text, keep, phrases, encoding, dry_run)

    def set_domain(self, domain: str, *, record_misses: bool | None = None) -> DomainInfo:
        """Change the settings that are not None. record_misses=True records the n-grams that users'
        texts miss; False stops this and deletes the record.

        Raises InvalidInput, NotFound, StorageFull.
        """
        return self._domains.set(domain, record_misses)

    def domains(self) -> list[DomainInfo]:
        """All domains by name, including each root's own PLOT."""
        return self._domains.all()

    def domain(self, domain: str) -> DomainInfo:
        """The domain of this name. Raises NotFound."""
        return self._domains.one(domain)

    def export_domain(self, version: str, archive: Path, progress: ByteProgress) -> None:
        """Write a version with its ancestors and lower layers to `archive`. See `domains.export_domain`."""
        export_domain(self._parts, version, archive, progress)

    def import_domain(
        self, archive: Path, name: str | None, progress: ByteProgress
    ) -> tuple[VersionInfo, list[str]]:
        """Import an export, as `domains.import_domain` describes."""
        return import_domain(self._parts, archive, name, progress)

    def push_domain(
        self,
        domain: str,
        place: str,
        progress: ByteProgress,
        *,
        expect: str | None = None,
        again: bool = False,
    ) -> Transfer:
        """Push a domain to a place in object storage, as `domains.push_domain` describes."""
        return push_domain(self._parts, domain, place, progress, expect, again)

    def pull_domain(
        self, domain: str, place: str, progress: ByteProgress, *, again: bool = False
    ) -> tuple[Transfer, list[str]]:
        """Pull a domain from a place in object storage, as `domains.pull_domain` describes."""
        return pull_domain(self._parts, domain, place, progress, again)

    def rollback_domain(self, domain: str, version: str) -> DomainInfo:
        """Make an earlier version current. Raises NotFound, InvalidInput (a version of another domain)."""
        return self._domains.rollback(domain, version)

    def delete_domain(self, domain: str) -> None:
        """Remove a domain and free its bytes. Raises NotFound, InvalidInput (a root), Conflict
        (which names the domains, models or jobs that depend on it)."""
        self._domains.delete(domain)
        self._consistency.collect()

    # Tenants and keys

    def create_tenant(
        self, name: str, *, weight: float = 1.0, limits: TenantLimits = NO_LIMITS
    ) -> tuple[TenantRecord, str]:
        """Create a tenant. Returns it with its first key in plain text, which is not stored.
        Raises InvalidInput, Conflict."""
        return self.tenants.create(name, weight, limits)

    def set_tenant(
        self, name: str, *, weight: float | None = None, limits: Mapping[str, Any] | None = None
    ) -> TenantRecord:
        """Change the weight if it is not None, and those of `hmi.tenancy.NAMES` that `limits` has. Running
        servers use them from the tenant's next call. Raises InvalidInput, NotFound."""
        return self.tenants.set(name, weight, limits or {})

    def delete_tenant(self, name: str) -> dict[str, int]:
        """Remove a tenant, its keys, models and jobs. Returns the counts. Its models' files are
        freed an hour later. Raises NotFound."""
        return self.tenants.delete(name)

    def create_key(
        self, tenant: str | None, scopes: Sequence[Scope] = TENANT_SCOPES, *, limit: int | None = None
    ) -> tuple[KeyRecord, str]:
        """Create a key that does not expire; see `TenantOperations.create_key`."""
        return self.tenants.create_key(tenant, scopes, limit)

    def revoke_key(self, key_id: str) -> KeyRecord:
        """Revoke a key. Raises NotFound."""
        return self.registry.revoke_key(key_id)

    # Models

    def create_model(
        self,
        model: str,
        *,
        domain: str,
        task: Task,
        data: Path | bytes | None = None,
        dev: Path | bytes | None = None,
        unlabelled: Path | bytes | None = None,
        options: Mapping[str, Any] | None = None,
        job_limit: int | None = None,
        asked: Mapping[str, Any] | None = None,
    ) -> JobRecord:
        """Train a new model.

        data: rows, which every task but embedding needs. unlabelled: texts for a teacher to label
        (see `hmi.training.second.teacher`). job_limit: how many queued and running jobs the tenant may have.
        asked: the call in its protocol's words (`FineTuneSpec.asked`).

        Raises InvalidInput, NotFound (tenant, domain), Conflict (exists, or a job is at work on
        it), QuotaExceeded, StorageFull.
        """
        files = _files_given(data=data, dev=dev, unlabelled=unlabelled)
        return self._models.create(model, domain, task, files, options, job_limit, asked)

    def update_model(
        self,
        model: str,
        *,
        data: Path | bytes | None = None,
        dev: Path | bytes | None = None,
        unlabelled: Path | bytes | None = None,
        options: Mapping[str, Any] | None = None,
        job_limit: int | None = None,
        publish: str = "if-better",
        asked: Mapping[str, Any] | None = None,
    ) -> JobRecord:
        """Train a model further, with the arguments of `create_model`. publish: when the new
        version becomes the one that answers (`hmi.jobs.options.Publish`). Raises as `create_model`."""
        files = _files_given(data=data, dev=dev, unlabelled=unlabelled)
        return self._models.update(model, files, options, job_limit, publish, asked)

    def train_ramps(
        self,
        model: str,
        *,
        data: Path | bytes | None = None,
        unlabelled: Path | bytes | None = None,
        skip_bad_rows: int = 0,
        reading: Reading = AS_IT_IS,
        job_limit: int | None = None,
    ) -> JobRecord:
        """Give a model ramps, by which texts may leave early: a new version with the same weights.

        data, unlabelled: texts to train them on, at least one of the two; answers in them are ignored. Raises
        InvalidInput (no texts, an embedding), and as `update_model`."""
        files = _files_given(data=data, unlabelled=unlabelled)
        return self._models.ramps(model, files, skip_bad_rows, reading, job_limit)

    def import_module(
        self,
        model: str,
        *,
        domain: str,
        files: Mapping[str, Path | bytes],
        task: Task = "classification",
        options: Mapping[str, Any] | None = None,
        job_limit: int | None = None,
    ) -> JobRecord:
        """Create a model from an adapter of the `adapters` library. files: adapter_config and
        adapter, and then head_config and head, or data (and dev) of `task` to train on, or both.

        Raises as `create_model`; InvalidInput also names what has no counterpart in HMI.
        """
        return self._exchange.import_(model, domain, task, files, options, job_limit)

    def export_module(self, model: str) -> ModuleFiles:
        """Export the live module as files of the `adapters` library. Raises NotFound, InvalidInput
        (no counterpart there), Damaged."""
        return self._exchange.export(model)

    def rollback_model(self, model: str, version: int) -> ModelRecord:
        """Make a version the one that answers. Raises NotFound."""
        return self._models.rollback(model, version)

    def set_objective(
        self, model: str, change: Callable[[Objective], Mapping[str, Any]], others: Mapping[str, Any] = {}
    ) -> ModelRecord:
        """Replace a model's objective, from the next text on. change: from the old one to the fields of the
        new one. others: `known_share`, and `depth` for later trainings. Raises NotFound, InvalidInput (an
        embedding has no bounds; no root has the depth)."""
        return set_objective(self.registry, ModelId.parse(model), change, others)

    def delete_model(self, model: str) -> None:
        """Remove a model and stop its jobs. Its files are freed an hour later. Raises NotFound."""
        self._models.delete(model)

    def profile_cascade(
        self,
        model: str,
        *,
        small: str | None = None,
        data: Path | bytes | None = None,
        skip_bad_rows: int = 0,
        reading: Reading = AS_IT_IS,
        job_limit: int | None = None,
    ) -> JobRecord:
        """Profile a cascade on labelled rows. model: its large level. small: the model that is asked first.
        Raises as `update_model`."""
        return self._cascades.profile(model, small, data, skip_bad_rows, reading, job_limit)

    def cascade(self, model: str) -> CascadeInfo:
        """The cascade of this large level. Raises NotFound (also if it has none)."""
        return self._cascades.show(model)

    def delete_cascade(self, model: str) -> None:
        """Remove the cascade: the model answers alone again. Raises NotFound (also if it has none)."""
        self._cascades.delete(model)

    def models(
        self, tenant: str | None = None, after: str | None = None, limit: int | None = None
    ) -> list[ModelRecord]:
        """The models after `after`, at most `limit` of them, in ascending order of `tenant.name`."""
        return self.registry.models(tenant, after, limit)

    def model(self, model: str) -> ModelRecord:
        """The model of this name. Raises NotFound."""
        return self.registry.model(ModelId.parse(model))

    # Jobs

    def jobs(self, tenant: str | None = None, state: JobState | None = None) -> list[JobRecord]:
        """All jobs, oldest first. `registry.page_of_jobs` reads only a page of them."""
        return self.registry.jobs(tenant, state)

    def job(self, job: str) -> JobRecord:
        """The job's record. A job whose process has died is put back into the queue. Raises NotFound."""
        return self.runner.refresh(job)

    def cancel_job(self, job: str) -> JobRecord:
        """Ask a job to stop. Raises NotFound, Conflict (it has ended)."""
        return self.runner.cancel(job)

    def job_progress(self, job: str) -> Progress:
        """The job's last progress; empty before it began. Raises NotFound for an impossible id."""
        return self.runner.read_progress(job)

    # Consistency

    def stats(self) -> dict[str, Any]:
        """Bytes on disk by part, and counts."""
        return self._consistency.stats()

    def verify(self) -> tuple[str, ...]:
        """Problems of the stores, one sentence each: damaged records, missing parts. Empty if
        they are consistent."""
        return self._consistency.verify()

    def verify_files(self) -> tuple[str, ...]:
        """Damage in roots, lower layers, modules and heads, one sentence each. Reads every byte."""
        return self._consistency.verify_files()

    def collect_garbage(self, *, plots: bool = True) -> dict[str, int]:
        """Free what nothing needs, and return the bytes by kind. plots=False leaves PLOT versions alone."""
        return self._consistency.collect(plots=plots)

    def _housekeeping(self) -> None:
        self._consistency.housekeeping()
        self.maintenance.housekeeping()
        self.registry.key_ring.drop_expired()


def _files_given(**files: Path | bytes | None) -> dict[str, Path | bytes]:
    return {name: file for name, file in files.items() if file is not None}
