"""Collectors of metrics that are read at a scrape: the counters of other parts."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

import hmi
from hmi.errors import HmiError
from hmi.resident import resident
from hmi.usage import Usage


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


class MeasuredTimes(Protocol):
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


class BackgroundTotals(Protocol):
    """Times of background jobs, as `hmi.jobs.runtime.pacing.PacingTotals` has them."""

    @property
    def running_s(self) -> float: ...
    @property
    def paused_s(self) -> float: ...
    @property
    def jobs(self) -> int: ...
    @property
    def starved(self) -> int: ...


class AuditCounts(Protocol):
    """Audits, as `hmi.stages.early_exit.evidence.Audits` has them."""

    @property
    def seen(self) -> int: ...
    @property
    def disagreed(self) -> int: ...


class PlanCounts(Protocol):
    """The planner's decisions, as `hmi.engine.adaptive.planning.PlanTotals` has them."""

    @property
    def seconds(self) -> float: ...
    @property
    def decisions(self) -> Mapping[tuple[str, str], int]: ...
    @property
    def dropped(self) -> int: ...
    @property
    def failures(self) -> int: ...


RootExecutors = tuple[str, str, Iterable[MeasuredTimes], str | None]
"""A root's name, the name of its executor, the measured times, and why its device is not used any more."""


class UsageCollector(Collector):
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
            "deep": CounterMetricFamily(
                "hmi_tenant_deep_inputs",
                "Texts that a version which computes all layers answered.",
                labels=["tenant"],
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


class ExitsCollector(Collector):
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


class PlansCollector(Collector):
    def __init__(self, totals: Callable[[], PlanCounts]) -> None:
        self._totals = totals

    def collect(self) -> Iterable[Metric]:
        found = self._totals()
        batches = CounterMetricFamily(
            "hmi_plan_batches",
            "Batches by the kind of their plan, and by the setting of token adaptation.",
            labels=["kind", "setting"],
        )
        for (kind, setting), count in sorted(dict(found.decisions).items()):
            batches.add_metric([kind or "in turn", setting or "off"], count)
        return [
            batches,
            CounterMetricFamily("hmi_plan_seconds", "Time that plans took.", found.seconds),
            CounterMetricFamily("hmi_plan_dropped_groups", "Groups left out, at each plan.", found.dropped),
            CounterMetricFamily("hmi_plan_failures", "Errors of the planner.", found.failures),
        ]


class TokenAuditsCollector(Collector):
    def __init__(self, totals: Callable[[], AuditCounts]) -> None:
        self._totals = totals

    def collect(self) -> Iterable[Metric]:
        found = self._totals()
        return [
            CounterMetricFamily("hmi_token_audits", "Texts that ran both merged and unmerged.", found.seen),
            CounterMetricFamily(
                "hmi_token_disagreements", "Those whose answers were not the same.", found.disagreed
            ),
        ]


class BackgroundCollector(Collector):
    def __init__(self, totals: Callable[[], BackgroundTotals]) -> None:
        self._totals = totals

    def collect(self) -> Iterable[Metric]:
        found = self._totals()
        seconds = CounterMetricFamily(
            "hmi_paced_seconds",
            "Time in which background jobs were free to run, and in which they were paused.",
            labels=["state"],
        )
        seconds.add_metric(["running"], found.running_s)
        seconds.add_metric(["paused"], found.paused_s)
        return [
            seconds,
            GaugeMetricFamily("hmi_paced_jobs", "Jobs that are paused while texts are answered.", found.jobs),
            GaugeMetricFamily(
                "hmi_paced_starved_jobs",
                "Those that were hardly free to run within the last hour.",
                found.starved,
            ),
        ]


class QueueCollector(Collector):
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


class WritingCollector(Collector):
    """Texts that are written, and the pages of their keys and values."""

    def __init__(self, state: Callable[[], Mapping[str, int]]) -> None:
        """state: the texts that are `running` and `waiting`; of all `pages` those that are `held` and
        `kept`; how often a text was `set_back`."""
        self._state = state

    def collect(self) -> Iterable[Metric]:
        state = self._state()
        texts = GaugeMetricFamily(
            "hmi_writing_texts", "Texts that are written (running) or wait for a place.", labels=["state"]
        )
        for name in ("running", "waiting"):
            texts.add_metric([name], state[name])
        pages = GaugeMetricFamily(
            "hmi_writing_pages",
            "Pages of keys and values, 16 tokens each: held by texts, kept for texts that begin alike, free.",
            labels=["state"],
        )
        free = state["pages"] - state["held"] - state["kept"]
        for name, count in (("held", state["held"]), ("kept", state["kept"]), ("free", free)):
            pages.add_metric([name], count)
        about = "Texts whose pages were taken for an older one, and that were computed again."
        return [texts, pages, CounterMetricFamily("hmi_writing_set_back", about, state["set_back"])]


class MachineCollector(Collector):
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


class PoolCollector(Collector):
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


class ExecutorCollector(Collector):
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


class JobsCollector(Collector):
    def __init__(
        self,
        by_state: Callable[[], Mapping[str, int]],
        states: Collection[str],
        background: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._by_state, self._states, self._background = by_state, states, background

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
        behind = GaugeMetricFamily(
            "hmi_background_jobs", "Those of them that nobody waits for, by state.", labels=["state"]
        )
        with suppress(HmiError):
            for state, count in sorted(self._background().items()):
                behind.add_metric([state], count)
        return [jobs, behind, lost]
