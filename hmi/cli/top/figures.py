"""The figures of `hmi top`, computed from two scrapes of a server's /metrics."""

from __future__ import annotations

from dataclasses import dataclass, field

from hmi.cli.top.scrape import Between, Scrape, between
from hmi.metrics.reading import REFUSALS
from hmi.usage import OTHERS, TOP_TENANTS


@dataclass(frozen=True)
class Traffic:
    """Calls to infer and their texts. Rates are per second; times in ms, None if nothing was observed."""

    calls_s: float | None = None
    texts_s: float | None = None
    tokens_s: float | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None
    refused_s: dict[str, float] = field(default_factory=dict)
    """Calls a second that were refused or dropped, by the kind of the error. Kinds without any are left out.
    """


@dataclass(frozen=True)
class ProcessFigures:
    """The server's process. `cpu` is the number of cores in use."""

    uptime_s: float | None = None
    cpu: float | None = None
    busy: float | None = None
    """The mean number of batches that run at a time in each stream: 0 to 1, and up to 2 while express batches
    run beside others."""
    streams: float | None = None
    resident_bytes: float | None = None
    memory_bytes: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Queue:
    """The waiting texts, and the waiting times of texts whose batches have run."""

    texts: float | None = None
    tokens: float | None = None
    oldest_ms: float | None = None
    wait_p50_ms: float | None = None
    wait_p95_ms: float | None = None


@dataclass(frozen=True)
class Batches:
    """The batches that ran: their number a second, and the mean texts, tokens, tenants and ms of one."""

    per_s: float | None = None
    texts: float | None = None
    tokens: float | None = None
    tenants: float | None = None
    ms: float | None = None


@dataclass(frozen=True)
class PoolFigures:
    """The adapter pool, which holds tenants' modules in memory. `events_s`: hits, misses and evictions a
    second."""

    bytes: float | None = None
    limit_bytes: float | None = None
    events_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ExecutorFigures:
    """A root in memory, the executor that runs its batches, and the µs that this executor takes for a token,
    by kind of measured batch ("short", "long", "mixed")."""

    root: str
    executor: str
    us_per_token: dict[str, float]


@dataclass(frozen=True)
class TenantFigures:
    """A tenant's rates a second, and its share of all tenants' compute."""

    tenant: str
    calls_s: float
    texts_s: float
    tokens_s: float
    compute_share: float
    early_share: float
    """The fraction of the tenant's texts that left early, 0 to 1."""
    deep_share: float
    """The fraction of the tenant's texts that were computed through all layers, 0 to 1."""
    us_per_token: float | None
    """Compute in µs for each of the tenant's tokens; None if it had no tokens."""


@dataclass(frozen=True)
class Saving:
    """The texts and the time that stages saved, as fractions from 0 to 1; None where there is nothing to
    divide by."""

    early_share: float | None = None
    """The fraction of all texts that left early."""
    saved_share: float | None = None
    """The compute that texts saved by leaving early, as a fraction of all compute that would have been needed
    without that."""
    returned_share: float | None = None
    """The fraction that the small level answered, of the texts that came to a cascade in use."""
    adapted_share: float | None = None
    """The fraction of all texts that token adaptation changed: their rows were merged, or prompts were added.
    """


@dataclass(frozen=True)
class WritingFigures:
    """The texts that models write, and the pages that hold their keys and values."""

    running: float
    waiting: float
    pages: dict[str, float]
    """Pages of 16 tokens: `held` by texts, `kept` for texts that begin alike, `free`."""
    tokens_s: float | None = None
    """Tokens written a second."""
    first_p50_ms: float | None = None
    """The median time from a prompt's arrival to the first token of its text."""
    first_p95_ms: float | None = None


@dataclass(frozen=True)
class Figures:
    """The figures of one screen of `hmi top`."""

    version: str
    traffic: Traffic
    process: ProcessFigures
    queue: Queue
    batches: Batches
    pool: PoolFigures
    saving: Saving
    writing: WritingFigures | None
    """None while no model that writes is in memory."""
    executors: list[ExecutorFigures]
    tenants: list[TenantFigures]
    tenants_told: bool
    """True if the server lists tenants by name (for administrators only), or has had no calls to list.
    """
    jobs: dict[str, int]
    """Jobs that wait or run, by state."""


def figures(before: Scrape | None, now: Scrape) -> Figures:
    """Return the figures at the scrape `now`, with rates over the time since `before`.

    The figures have no rates if `before` is None, or if the server was restarted in between.
    """
    span = None if before is None else between(before, now)
    about = now.by("hmi_info", "version")
    jobs = now.by("hmi_jobs", "state")
    return Figures(
        version=next(iter(about), ""),
        traffic=Traffic() if span is None else _traffic(span),
        process=_process(now, span),
        queue=_queue(now, span),
        batches=Batches() if span is None else _batches(span),
        pool=_pool(now, span),
        saving=Saving() if span is None else _saving(span),
        writing=_writing(now, span),
        executors=_executors(now),
        tenants=[] if span is None else _tenants(span),
        tenants_told=bool(now.by("hmi_tenant_requests_total", "tenant")) or not _requests(now),
        jobs={state: int(jobs[state]) for state in ("running", "queued") if jobs.get(state)},
    )


def _requests(now: Scrape) -> float:
    return now.value("hmi_tenant_requests_total") or 0.0


def _traffic(span: Between) -> Traffic:
    calls = Between(
        span.before.only("hmi_request_seconds", "route", "/infer"),
        span.after.only("hmi_request_seconds", "route", "/infer"),
        span.seconds,
    )
    outcomes = {kind: span.rate("hmi_requests_total", outcome=kind) for kind in REFUSALS}
    return Traffic(
        calls_s=calls.rate("hmi_request_seconds_count") or 0.0,
        texts_s=span.rate("hmi_tenant_inputs_total") or 0.0,
        tokens_s=span.rate("hmi_tenant_tokens_total") or 0.0,
        p50_ms=_ms(calls.quantile(0.5, "hmi_request_seconds")),
        p95_ms=_ms(calls.quantile(0.95, "hmi_request_seconds")),
        refused_s={kind: rate for kind, rate in outcomes.items() if rate},
    )


def _process(now: Scrape, span: Between | None) -> ProcessFigures:
    started, streams = now.value("process_start_time_seconds"), now.value("hmi_compute_streams")
    busy = None if span is None else span.rate("hmi_batch_seconds_sum")
    return ProcessFigures(
        uptime_s=None if started is None else max(0.0, now.at - started),
        cpu=None if span is None else span.rate("process_cpu_seconds_total"),
        busy=min(2.0, busy / streams) if busy is not None and streams else None,
        streams=streams,
        resident_bytes=now.value("process_resident_memory_bytes"),
        memory_bytes=now.by("hmi_memory_bytes", "tier"),
    )


def _queue(now: Scrape, span: Between | None) -> Queue:
    return Queue(
        texts=now.value("hmi_queue_texts"),
        tokens=now.value("hmi_queue_tokens"),
        oldest_ms=_ms(now.value("hmi_queue_oldest_seconds")),
        wait_p50_ms=None if span is None else _ms(span.quantile(0.5, "hmi_stage_seconds", stage="queue")),
        wait_p95_ms=None if span is None else _ms(span.quantile(0.95, "hmi_stage_seconds", stage="queue")),
    )


def _batches(span: Between) -> Batches:
    return Batches(
        per_s=span.rate("hmi_batch_seconds_count"),
        texts=span.mean("hmi_batch_inputs"),
        tokens=span.mean("hmi_batch_tokens"),
        tenants=span.mean("hmi_batch_tenants"),
        ms=_ms(span.mean("hmi_batch_seconds")),
    )


def _pool(now: Scrape, span: Between | None) -> PoolFigures:
    return PoolFigures(
        bytes=now.value("hmi_adapter_pool_bytes"),
        limit_bytes=now.value("hmi_adapter_pool_limit_bytes"),
        events_s={} if span is None else span.rates("hmi_adapter_pool_total", "event"),
    )


def _saving(span: Between) -> Saving:
    texts, early, compute, saved, cascaded, small = (
        span.rate(f"hmi_tenant_{what}_total") or 0.0
        for what in (
            "inputs",
            "early_inputs",
            "compute_seconds",
            "saved_seconds",
            "cascade_inputs",
            "small_inputs",
        )
    )
    adapted = span.rate("hmi_execution_stage_inputs_total", stage="tokens") or 0.0
    return Saving(
        early_share=early / texts if texts else None,
        saved_share=saved / (compute + saved) if compute + saved else None,
        returned_share=small / cascaded if cascaded else None,
        adapted_share=adapted / texts if texts else None,
    )


def _writing(now: Scrape, span: Between | None) -> WritingFigures | None:
    texts, pages = now.by("hmi_writing_texts", "state"), now.by("hmi_writing_pages", "state")
    running, waiting = texts.get("running", 0.0), texts.get("waiting", 0.0)
    if not (running or waiting or any(pages.values())):
        return None
    first = "hmi_writing_first_token_seconds"
    return WritingFigures(
        running,
        waiting,
        pages,
        tokens_s=None if span is None else span.rate("hmi_writing_tokens_total", kind="written") or 0.0,
        first_p50_ms=None if span is None else _ms(span.quantile(0.5, first)),
        first_p95_ms=None if span is None else _ms(span.quantile(0.95, first)),
    )


def _executors(now: Scrape) -> list[ExecutorFigures]:
    found = []
    for labels, _ in now.samples.get("hmi_executor", ()):
        root, executor = labels["root"], labels["executor"]
        times = now.by("hmi_executor_token_seconds", "batch", root=root, executor=executor)
        found.append(ExecutorFigures(root, executor, {batch: 1e6 * s for batch, s in times.items()}))
    return sorted(found, key=lambda runs: runs.root)


def _tenants(span: Between) -> list[TenantFigures]:
    calls, texts, tokens, compute, early, deep = (
        span.rates(f"hmi_tenant_{what}_total", "tenant", others=OTHERS)
        for what in ("requests", "inputs", "tokens", "compute_seconds", "early_inputs", "deep_inputs")
    )
    whole = sum(compute.values()) or 1.0
    found = [
        TenantFigures(
            name,
            calls[name],
            texts.get(name, 0.0),
            tokens.get(name, 0.0),
            compute.get(name, 0.0) / whole,
            early.get(name, 0.0) / (texts.get(name) or 1.0),
            deep.get(name, 0.0) / (texts.get(name) or 1.0),
            1e6 * compute.get(name, 0.0) / tokens[name] if tokens.get(name) else None,
        )
        for name in calls
    ]
    busy = [tenant for tenant in found if tenant.calls_s or tenant.tokens_s]
    busy.sort(
        key=lambda tenant: (tenant.tenant == OTHERS, -tenant.compute_share, -tenant.calls_s, tenant.tenant)
    )
    own = [tenant for tenant in busy if tenant.tenant != OTHERS][:TOP_TENANTS]
    return own + [tenant for tenant in busy if tenant.tenant == OTHERS]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds
