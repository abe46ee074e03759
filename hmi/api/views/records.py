"""Converts the registry's records to the answers that a client or the command line gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hmi.api.access.rates import QuotaState
from hmi.api.schemas.domains import DomainVersionView, DomainView
from hmi.api.schemas.exits import ExitsView
from hmi.api.schemas.models import ModelView
from hmi.api.schemas.overview import StatsView
from hmi.api.schemas.roots import ExecutionView, ExecutorTimes, RootView, ShardsView
from hmi.api.schemas.second_version import ImprovingView
from hmi.api.schemas.shared import JobView
from hmi.api.schemas.tenants import (
    KeyView,
    LimitsView,
    QuotaView,
    RateState,
    StoreState,
    TenantDetails,
    TenantView,
)
from hmi.api.views.exits import cascade_brief
from hmi.api.views.tokens import tokens_brief
from hmi.core import (
    JobRecord,
    KeyRecord,
    ModelRecord,
    Pacing,
    Progress,
    RootRecord,
    TenantLimits,
    TenantRecord,
)
from hmi.execution.fastest import fastest, precision_of
from hmi.manager import DomainInfo
from hmi.metrics import Metrics, memory_by_tier
from hmi.model.tenant.novelty_threshold import threshold_of
from hmi.stores.profiles import Profile
from hmi.stores.records.job_table import target_of
from hmi.stores.records.tenant_room import Stored

Running = tuple[str, str | None]
"""The name of a root's executor, and why its device is not used any more, for a root in memory."""
ORDER_NAMES = {"5": "5grams", "4": "4grams", "3": "trigrams", "2": "bigrams", "1": "unigrams"}


def job_view(
    job: JobRecord, progress: Progress, pacing: Pacing | None = None, server: str | None = None
) -> JobView:
    """Return a job's view. server: the URL of the one that has it."""
    return JobView(
        job=job.job,
        kind=job.kind,
        state=job.state,
        tenant=job.tenant,
        target=target_of(job) or "",
        created=job.created,
        started=job.started,
        ended=job.ended,
        attempts=job.attempts,
        server=server,
        cancel_requested=job.cancel_requested,
        # Without a running process, the time that was left says nothing about when the job will end.
        progress=progress if job.state == "running" else progress.model_copy(update={"eta_ms": None}),
        result=job.result,
        error=job.error,
        cost=job.cost,
        pacing=pacing if job.state == "running" else None,
    )


def root_view(
    root: RootRecord, profile: Profile | None, precision: str, running: Running | None = None
) -> RootView:
    """Return a root's view. profile: the root's profile on this machine. precision: the setting."""
    return RootView(
        root=root.name,
        version=root.version,
        created=root.created,
        source=root.source,
        dim=root.dim,
        layers=root.layers,
        split=root.split,
        n=root.n,
        generates=root.generates,
        fidelity=root.fidelity,
        fidelity_by_kind=root.fidelity_by_kind,
        bytes=root.bytes,
        execution=execution_view(profile, precision, running),
        shards=None if root.shards is None else ShardsView(**root.shards.model_dump()),
        priority=root.priority,
    )


def execution_view(
    profile: Profile | None, precision: str, running: Running | None = None
) -> ExecutionView | None:
    """The executor that runs a root. None if the root is neither in memory nor measured on this machine."""
    measured = () if profile is None else profile.measured
    if running is None and not measured:
        return None
    best, fault = running or (fastest(measured, precision).name, None)
    return ExecutionView(
        executor=best,
        precision=precision_of(best),
        fault=fault,
        measured_at=None if profile is None else profile.measured_at,
        batches={} if profile is None else {name: list(n) for name, n in profile.batches.items()},
        measured=[
            ExecutorTimes(executor=m.name, us_per_token=m.us_per_token, cosine=m.cosine) for m in measured
        ],
    )


def tenant_view(tenant: TenantRecord) -> TenantView:
    return TenantView(**_tenant_fields(tenant))


def tenant_details(tenant: TenantRecord, quota: QuotaView) -> TenantDetails:
    return TenantDetails(**_tenant_fields(tenant), quota=quota)


def _tenant_fields(tenant: TenantRecord) -> dict[str, Any]:
    limits = LimitsView(**tenant.limits.model_dump())
    return {"tenant": tenant.tenant, "created": tenant.created, "weight": tenant.weight, "limits": limits}


def quota_view(limits: TenantLimits, stored: Stored, rates: Sequence[QuotaState]) -> QuotaView:
    """The limits that hold for a tenant, with what it has used of them."""
    states = {
        state.quota: RateState(
            per_s=state.rate.per_s,
            burst=state.rate.capacity,
            left=round(state.left, 3),
            full_s=round(state.full_s, 3),
        )
        for state in rates
    }
    return QuotaView(
        requests_per_s=states.get("requests_per_s"),
        tokens_per_s=states.get("tokens_per_s"),
        models=_store_state(limits.models, stored.models),
        bytes=_store_state(limits.bytes, stored.bytes),
    )


def _store_state(limit: int | None, used: int) -> StoreState | None:
    return None if limit is None else StoreState(limit=limit, used=used, left=max(0, limit - used))


def key_view(key: KeyRecord, last_used: str | None = None) -> KeyView:
    return KeyView(
        key_id=key.key_id,
        tenant=key.tenant,
        scopes=list(key.scopes),
        created=key.created,
        label=key.label,
        expires=key.expires,
        expired=key.expired,
        successor=key.successor,
        last_used=last_used,
    )


def model_view(
    model: ModelRecord, exits: ExitsView | None = None, improving: ImprovingView | None = None
) -> ModelView:
    live = model.live
    return ModelView(
        model=f"{model.tenant}.{model.name}",
        current=model.current,
        domain=live.domain,
        task=live.task,
        labels=list(live.labels),
        ramps=list(live.ramps),
        temperature=live.temperature,
        metrics=live.metrics,
        bytes=live.bytes,
        objective=model.objective,
        known_share=model.known_share,
        depth=model.depth,
        root=live.root,
        known_threshold=threshold_of(live.known, model.known_share),
        cascade=cascade_brief(model.cascade),
        exits=exits,
        tokens=tokens_brief(model),
        improving=improving,
        versions=list(model.versions),
    )


def domain_view(domain: DomainInfo) -> DomainView:
    return DomainView(
        domain=domain.domain,
        root=domain.root,
        parent=domain.parent,
        children=list(domain.children),
        current=domain.current,
        entries=_by_name(domain.entries),
        bytes=domain.bytes,
        alpha=domain.alpha,
        models=domain.models,
        record_misses=domain.record_misses,
        versions=[
            DomainVersionView(
                version=v.version,
                created=v.created,
                entries=_by_name(v.entries),
                bytes=v.bytes,
                alpha=v.alpha,
                budget_bytes=v.budget_bytes,
                report=v.report,
            )
            for v in domain.versions
        ],
    )


def stats_view(found: Mapping[str, Any], metrics: Metrics) -> StatsView:
    pool = metrics.pool
    return StatsView(
        counts={name: value for name, value in found.items() if isinstance(value, int)},
        plot_entries=_by_name(found["plot_entries"]),
        plot_lookups=metrics.lookups.by_domain(),
        disk_bytes=dict(found["bytes"]),
        memory_bytes={"adapter_pool": 0 if pool is None else pool.bytes, **memory_by_tier()},
    )


def _by_name(entries: Mapping[str, int]) -> dict[str, int]:
    return {ORDER_NAMES[order]: count for order, count in entries.items()}
