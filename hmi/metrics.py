"""The server's metrics, in one object that is passed around; nothing is registered globally at import.

`Metrics` is thread-safe: prometheus_client locks its values, and `Usage` and `Lookups` have their own locks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

import hmi
from hmi.errors import HmiError
from hmi.resident import resident
from hmi.usage import Usage

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)  # both: buckets of histograms


class PoolCounters(Protocol):
    """The counters of an adapter pool, read at each scrape."""

    @property
    def hits(self) -> int: ...
    @property
    def misses(self) -> int: ...
    @property
    def evictions(self) -> int: ...
    @property
    def loads(self) -> int: ...
    @property
    def load_seconds(self) -> float: ...
    @property
    def unused_seconds(self) -> float: ...
    @property
    def bytes(self) -> int: ...
    @property
    def mapped_bytes(self) -> int: ...


class ExecutorTimes(Protocol):
    """One executor's measured times, as `hmi.stores.profiles.Measured` has them."""

    @property
    def name(self) -> str: ...
    @property
    def us_per_token(self) -> Mapping[str, float]: ...


class ExitTotals(Protocol):
    """Counts of the early exits of all models, as `hmi.stages.early_exit.report.Totals` has them."""

    @property
    def states(self) -> Mapping[str, int]: ...
    @property
    def audits(self) -> int: ...
    @property
    def disagreed(self) -> int: ...
    @property
    def alarms(self) -> int: ...


RootExecutors = tuple[str, str, Iterable[ExecutorTimes], str | None]
"""A root's name, the name of its executor, the measured times, and why its device is not used any more."""


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


class Metrics:
    """All metrics of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.usage = Usage()
        self.lookups = Lookups()
        self.pool: PoolCounters | None = None
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
        self.registry.register(_UsageCollector(self.usage))
        self.registry.register(_MachineCollector())
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

    def watch_queue(
        self, tokens: Callable[[], int], texts: Callable[[], tuple[int, float]], streams: int
    ) -> None:
        """Report the tokens that wait, the texts that wait with the seconds of the oldest, and the streams.

        Both functions are called on the scrape's thread.
        """
        self._streams.set(streams)
        self.registry.register(_QueueCollector(tokens, texts))

    def watch_pool(self, pool: PoolCounters, limit_bytes: int) -> None:
        """Report an adapter pool's own counters, and its limit, at each scrape."""
        self.pool = pool
        self.registry.register(_PoolCollector(pool, limit_bytes))

    def watch_exits(self, totals: Callable[[], ExitTotals]) -> None:
        """Report the counts of all models' early exits. Called on the scrape's thread."""
        self.registry.register(_ExitsCollector(totals))

    def watch_executors(self, executors: Callable[[], Iterable[RootExecutors]]) -> None:
        """Report the executor of each root in memory, and the times that chose it."""
        self.executors = executors
        self.registry.register(_ExecutorCollector(executors))

    def watch_jobs(self, by_state: Callable[[], Mapping[str, int]], states: Collection[str]) -> None:
        """Report the number of jobs in each of `states`. A state that `by_state` leaves out is damaged."""
        self.registry.register(_JobsCollector(by_state, states))

    def render(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self.registry)


def _exits_counter(registry: CollectorRegistry) -> Counter:
    about = "Texts that left early, by the upper layer before which they did."
    return Counter("hmi_exits", about, ["site"], registry=registry)


class _UsageCollector(Collector):
    def __init__(self, usage: Usage) -> None:
        self._usage = usage

    def collect(self) -> Iterable[Metric]:
        families = {
            "requests": CounterMetricFamily("hmi_tenant_requests", "Inference requests.", labels=["tenant"]),
            "inputs": CounterMetricFamily("hmi_tenant_inputs", "Texts answered.", labels=["tenant"]),
            "tokens": CounterMetricFamily("hmi_tenant_tokens", "Tokens inferred.", labels=["tenant"]),
            "early": CounterMetricFamily(
                "hmi_tenant_early_inputs", "Texts that left early.", labels=["tenant"]
            ),
            "small": CounterMetricFamily(
                "hmi_tenant_small_inputs",
                "Texts that the small level of a cascade answered.",
                labels=["tenant"],
            ),
            "cascaded": CounterMetricFamily(
                "hmi_tenant_cascade_inputs", "Texts that came to a cascade in use.", labels=["tenant"]
            ),
        }
        compute = CounterMetricFamily("hmi_tenant_compute_seconds", "Compute time.", labels=["tenant"])
        saved = CounterMetricFamily(
            "hmi_tenant_saved_seconds",
            "Time of the layers that texts which left early did not run.",
            labels=["tenant"],
        )
        for tenant, use in self._usage.top().items():
            for name, family in families.items():
                family.add_metric([tenant], getattr(use, name))
            compute.add_metric([tenant], use.compute_ms / 1000)
            saved.add_metric([tenant], use.saved_ms / 1000)
        return [*families.values(), compute, saved]


class _ExitsCollector(Collector):
    def __init__(self, totals: Callable[[], ExitTotals]) -> None:
        self._totals = totals

    def collect(self) -> Iterable[Metric]:
        found = self._totals()
        models = GaugeMetricFamily("hmi_exit_models", "Models with early exits, by state.", labels=["state"])
        for state, count in sorted(found.states.items()):
            models.add_metric([state], count)
        return [
            models,
            CounterMetricFamily("hmi_exit_audits", "Audits while others could leave.", found.audits),
            CounterMetricFamily("hmi_exit_disagreements", "Audits that disagreed.", found.disagreed),
            CounterMetricFamily("hmi_exit_alarms", "Alarms: the texts had changed.", found.alarms),
        ]


class _QueueCollector(Collector):
    def __init__(self, tokens: Callable[[], int], texts: Callable[[], tuple[int, float]]) -> None:
        self._tokens, self._texts = tokens, texts

    def collect(self) -> Iterable[Metric]:
        texts, oldest_s = self._texts()
        return [
            GaugeMetricFamily("hmi_queue_tokens", "Tokens waiting for a batch.", self._tokens()),
            GaugeMetricFamily("hmi_queue_texts", "Texts waiting for a batch.", texts),
            GaugeMetricFamily(
                "hmi_queue_oldest_seconds", "Age of the text that has waited longest.", oldest_s
            ),
        ]


class _MachineCollector(Collector):
    def collect(self) -> Iterable[Metric]:
        about = GaugeMetricFamily("hmi_info", "1 for the release that runs.", labels=["version"])
        about.add_metric([hmi.__version__], 1)
        memory = GaugeMetricFamily(
            "hmi_memory_bytes",
            "Resident memory: the process's own (anonymous), and mapped files such as PLOTs and modules.",
            labels=["tier"],
        )
        for tier, size in memory_by_tier().items():
            memory.add_metric([tier], size)
        clock = GaugeMetricFamily(
            "hmi_scrape_timestamp_seconds", "When these values were read, in Unix time.", time.time()
        )
        return [about, memory, clock]


def memory_by_tier() -> dict[str, int]:
    """This process's resident bytes: `anonymous` and `files`. Empty where there is no /proc."""
    try:
        found = resident()
    except OSError:
        return {}
    return {"anonymous": found.anonymous, "files": found.files}


class _PoolCollector(Collector):
    def __init__(self, pool: PoolCounters, limit_bytes: int) -> None:
        self._pool, self._limit_bytes = pool, limit_bytes

    def collect(self) -> Iterable[Metric]:
        events = CounterMetricFamily("hmi_adapter_pool", "Adapter pool events.", labels=["event"])
        events.add_metric(["hit"], self._pool.hits)
        events.add_metric(["miss"], self._pool.misses)
        events.add_metric(["eviction"], self._pool.evictions)
        size = GaugeMetricFamily("hmi_adapter_pool_bytes", "Private memory of the modules in memory.")
        size.add_metric([], self._pool.bytes)
        limit = GaugeMetricFamily(
            "hmi_adapter_pool_limit_bytes", "The most private memory of modules.", self._limit_bytes
        )
        mapped = GaugeMetricFamily(
            "hmi_adapter_pool_mapped_bytes", "Files that the modules in memory are mapped from."
        )
        mapped.add_metric([], self._pool.mapped_bytes)
        loads = SummaryMetricFamily("hmi_adapter_pool_load_seconds", "Time to load a module.")
        loads.add_metric([], self._pool.loads, self._pool.load_seconds)
        unused = SummaryMetricFamily(
            "hmi_adapter_pool_unused_seconds", "Time from a module's last use to its eviction."
        )
        unused.add_metric([], self._pool.evictions, self._pool.unused_seconds)
        return [events, size, limit, mapped, loads, unused]


class _ExecutorCollector(Collector):
    def __init__(self, executors: Callable[[], Iterable[RootExecutors]]) -> None:
        self._executors = executors

    def collect(self) -> Iterable[Metric]:
        runs = GaugeMetricFamily("hmi_executor", "1 for the executor of a root.", labels=["root", "executor"])
        times = GaugeMetricFamily(
            "hmi_executor_token_seconds",
            "Measured time of one token, by executor and batch: a short text, a long one, a mixed batch.",
            labels=["root", "executor", "batch"],
        )
        lost = GaugeMetricFamily("hmi_device_lost", "1 for a root whose device has failed.", labels=["root"])
        for root, name, measured, fault in self._executors():
            runs.add_metric([root, name], 1)
            lost.add_metric([root], fault is not None)
            for one in measured:
                for batch, us in one.us_per_token.items():
                    times.add_metric([root, one.name, batch], us / 1e6)
        return [runs, times, lost]


class _JobsCollector(Collector):
    def __init__(self, by_state: Callable[[], Mapping[str, int]], states: Collection[str]) -> None:
        self._by_state, self._states = by_state, states

    def collect(self) -> Iterable[Metric]:
        found: Mapping[str, int] = {}
        with suppress(HmiError):  # the other metrics must be available nevertheless
            found = self._by_state()
        jobs = GaugeMetricFamily("hmi_jobs", "Jobs by state.", labels=["state"])
        for state, count in sorted(found.items()):
            jobs.add_metric([state], count)
        lost = GaugeMetricFamily(
            "hmi_jobs_unread", "States whose jobs cannot be counted: run 'hmi store verify'."
        )
        lost.add_metric([], len(set(self._states) - set(found)))
        return [jobs, lost]
