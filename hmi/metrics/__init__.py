"""The server's metrics, in one object that is passed around; nothing is registered globally at import.

`Metrics` is thread-safe: prometheus_client locks its values, and `Usage` and `Lookups` have their own locks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from hmi.metrics.collectors import (
    AuditCounts,
    BackgroundCollector,
    BackgroundTotals,
    ExecutorCollector,
    ExitsCollector,
    ExitTotals,
    JobsCollector,
    MachineCollector,
    PlanCounts,
    PlansCollector,
    PoolCollector,
    PoolCounters,
    QueueCollector,
    RootExecutors,
    TokenAuditsCollector,
    UsageCollector,
    WritingCollector,
)
from hmi.metrics.collectors import memory_by_tier as memory_by_tier
from hmi.usage import Usage

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)  # both: buckets of histograms


class Lookups:
    """Tokens looked up since the server started, by domain and by the order of the n-gram that answered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_domain: dict[str, dict[str, int]] = {}

    def add(self, domain: str, hits: Mapping[str, int]) -> None:
        with self._lock:
            mine = self._by_domain.setdefault(domain, {})
            for order, count in hits.items():
                mine[order] = mine.get(order, 0) + count

    def by_domain(self) -> dict[str, dict[str, int]]:
        """Return a copy of the counts."""
        with self._lock:
            return {domain: dict(counts) for domain, counts in self._by_domain.items()}


class _WritingMetrics:
    """The metrics of texts that were written to their end."""

    def __init__(self, registry: CollectorRegistry) -> None:
        about = "Time from a prompt's arrival to the first token of its text."
        self.first = Histogram("hmi_writing_first_token_seconds", about, buckets=SECONDS, registry=registry)
        about = "Time between two tokens of a text: the mean of each whole text."
        self.each = Histogram("hmi_writing_token_seconds", about, buckets=SECONDS, registry=registry)
        about = (
            "Tokens: written; guessed ahead, and of these the ones that came true; of whole texts' prompts "
            "those read, and of these the cached ones."
        )
        self.tokens = Counter("hmi_writing_tokens", about, ["kind"], registry=registry)


class Metrics:
    """All metrics of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.usage = Usage()
        self.lookups = Lookups()
        self.pool: PoolCounters | None = None
        self.pool_limit_bytes = 0
        self.queue: tuple[Callable[[], int], Callable[[], tuple[int, float]]] | None = None
        """The functions of `watch_queue`."""
        self.executors: Callable[[], Iterable[RootExecutors]] = tuple
        """The executor of each root in memory, and the times that chose it."""
        self._requests = Counter(
            "hmi_requests", "Answers by route and outcome.", ["route", "outcome"], registry=self.registry
        )
        self._latency = Histogram(
            "hmi_request_seconds", "Time to answer.", ["route"], buckets=SECONDS, registry=self.registry
        )
        self._stage = Histogram(
            "hmi_stage_seconds",
            "Time of a stage of inference: queue, retrieve, compute.",
            ["stage"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self._stages: dict[str, Histogram] = {}
        self._batch_inputs = Histogram(
            "hmi_batch_inputs", "Texts in a batch.", buckets=COUNTS, registry=self.registry
        )
        self._batch_tokens = Histogram(
            "hmi_batch_tokens", "Tokens in a batch.", buckets=COUNTS, registry=self.registry
        )
        self._batch_tenants = Histogram(
            "hmi_batch_tenants", "Tenants in a batch.", buckets=COUNTS, registry=self.registry
        )
        self._batch_seconds = Histogram(
            "hmi_batch_seconds",
            "Time of a batch on a compute thread: the rate of the sum is the number of batches that run at a "
            "time, at most twice hmi_compute_streams.",
            buckets=SECONDS,
            registry=self.registry,
        )
        self._streams = Gauge("hmi_compute_streams", "Streams of batches.", registry=self.registry)
        self._plot = Counter(
            "hmi_plot_lookups", "PLOT lookups by the n-gram that answered.", ["order"], registry=self.registry
        )
        self._execution = Counter(
            "hmi_execution_stage_inputs",
            "Texts that ran with an execution stage on, by its setting.",
            ["stage", "setting"],
            registry=self.registry,
        )
        self._exits = _exits_counter(self.registry)
        self._deadlines = Counter(
            "hmi_deadline_misses",
            "Calls that were not answered before their deadline.",
            registry=self.registry,
        )
        self._writing = _WritingMetrics(self.registry)
        self.registry.register(UsageCollector(self.usage))
        self.registry.register(MachineCollector())
        ProcessCollector(registry=self.registry)

    def request(self, route: str, outcome: str, seconds: float) -> None:
        """Count an answer. `route` is the route's pattern, `outcome` is "ok" or the error's kind."""
        self._requests.labels(route, outcome).inc()
        self._latency.labels(route).observe(seconds)

    def stage(self, name: str, seconds: float) -> None:
        """Observe the time of one batch in a stage, or of one text in the stage `queue`."""
        of_stage = self._stages.get(name)
        if of_stage is None:  # `labels` takes as long as `observe`
            of_stage = self._stages[name] = self._stage.labels(name)
        of_stage.observe(seconds)

    def batch(self, inputs: int, tokens: int, tenants: int, seconds: float) -> None:
        """Observe a batch that ran. `seconds` is its time of a compute thread."""
        self._batch_inputs.observe(inputs)
        self._batch_tokens.observe(tokens)
        self._batch_tenants.observe(tenants)
        self._batch_seconds.observe(seconds)

    def deadline_missed(self) -> None:
        """Count a call that was not answered before its deadline."""
        self._deadlines.inc()

    def execution_stage(self, stage: str, setting: str, inputs: int) -> None:
        """Count the texts of a batch that ran with this execution stage on."""
        self._execution.labels(stage, setting).inc(inputs)

    def exits(self, site: int, inputs: int) -> None:
        """Count texts that left early, before the upper layer `site`."""
        self._exits.labels(str(site)).inc(inputs)

    def plot_hits(self, domain: str, hits: Mapping[str, int]) -> None:
        """Count a text's look-ups by what answered: trigram, bigram, unigram, …, miss, computed."""
        self.lookups.add(domain, hits)
        for order, count in hits.items():
            if count:
                self._plot.labels(order).inc(count)

    def wrote(self, tokens: int, guessed: int, true: int) -> None:
        """Count the tokens that a step has written, those that it guessed, and of these the true ones."""
        for kind, count in (("written", tokens), ("guessed", guessed), ("true", true)):
            self._writing.tokens.labels(kind).inc(count)

    def text(self, read: int, cached: int, first_s: float, each_s: float | None) -> None:
        """Count a text that was written to its end. read, cached: tokens of its prompt, and those that were
        known. first_s: seconds until its first token; each_s: between two tokens, None if it has only one."""
        self._writing.tokens.labels("read").inc(read)
        self._writing.tokens.labels("cached").inc(cached)
        self._writing.first.observe(first_s)
        if each_s is not None:
            self._writing.each.observe(each_s)

    def watch_writing(self, state: Callable[[], Mapping[str, int]]) -> None:
        """Report the texts that are written and that wait, and the pages of keys and values."""
        self.registry.register(WritingCollector(state))

    def watch_queue(
        self, tokens: Callable[[], int], texts: Callable[[], tuple[int, float]], streams: int
    ) -> None:
        """Report the tokens that wait, the texts that wait with the seconds of the oldest, and the streams.

        Both functions are called on the scrape's thread.
        """
        self._streams.set(streams)
        self.queue = tokens, texts
        self.registry.register(QueueCollector(tokens, texts))

    def watch_pool(self, pool: PoolCounters, limit_bytes: int) -> None:
        """Report an adapter pool's own counters, and its limit, at each scrape."""
        self.pool, self.pool_limit_bytes = pool, limit_bytes
        self.registry.register(PoolCollector(pool, limit_bytes))

    def watch_exits(self, totals: Callable[[], ExitTotals]) -> None:
        """Report the counts of all models' early exits. Called on the scrape's thread."""
        self.registry.register(ExitsCollector(totals))

    def watch_plans(self, totals: Callable[[], PlanCounts]) -> None:
        """Report the planner's decisions. Called on the scrape's thread."""
        self.registry.register(PlansCollector(totals))

    def watch_token_audits(self, totals: Callable[[], AuditCounts]) -> None:
        """Report the audits of merged texts. Called on the scrape's thread."""
        self.registry.register(TokenAuditsCollector(totals))

    def watch_executors(self, executors: Callable[[], Iterable[RootExecutors]]) -> None:
        """Report the executor of each root in memory, and the times that chose it."""
        self.executors = executors
        self.registry.register(ExecutorCollector(executors))

    def watch_jobs(
        self,
        by_state: Callable[[], Mapping[str, int]],
        states: Collection[str],
        background: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """Report the number of jobs in each of `states`. A state that `by_state` leaves out is damaged.

        background: how many of them are background jobs.
        """
        self.registry.register(JobsCollector(by_state, states, background))

    def watch_background(self, totals: Callable[[], BackgroundTotals]) -> None:
        """Report the times of background jobs. Called on the scrape's thread."""
        self.registry.register(BackgroundCollector(totals))

    def render(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self.registry)


def _exits_counter(registry: CollectorRegistry) -> Counter:
    about = "Texts that left early, by the upper layer before which they did."
    return Counter("hmi_exits", about, ["site"], registry=registry)
