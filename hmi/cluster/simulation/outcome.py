"""What a simulation saw."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hmi.cluster.simulation.parameters import MONTH_H, Cluster, Costs, Load, Prices
from hmi.cluster.simulation.replica import BUCKET, DISK, MEMORY


class Answered(NamedTuple):
    """One call that ended."""

    arrived: float
    took_s: float
    """Seconds from its arrival to its answer; -1 if it failed."""
    module: int
    plot: int
    passed: bool
    """Whether another server than the one that received it answered it."""
    spilled: bool
    """Whether another server than its tenant's first answered it."""


@dataclass(frozen=True)
class Figures:
    """The figures of all calls that arrived within a span."""

    calls: int
    failed: int
    calls_s: float
    """Answers a second."""
    p50_s: float
    p99_s: float
    module_memory: float
    """The share of calls whose module was in memory, and so on."""
    module_disk: float
    module_bucket: float
    plot_bucket: float
    """The share of calls that waited for a PLOT from the bucket."""
    passed: float
    spilled: float


@dataclass(frozen=True)
class Outcome:
    """What a simulation saw, and what it follows from."""

    costs: Costs
    load: Load
    cluster: Cluster
    figures: Figures
    seen: NDArray[np.float64]
    """A row for each call: the fields of `Answered`."""
    begin_s: float
    end_s: float
    rows_in_memory: float
    """The share of look-ups whose row is in memory."""
    copies: float
    """Servers that have a tenant's module in memory, in the mean over tenants for which any has."""
    several: float
    """The share of these tenants for which several have it."""
    module_disk_bytes: float
    """Bytes of modules on the disk of a server that has run for `served_s`, in the mean."""
    plot_disk_bytes: float
    """The same of PLOTs."""
    busy: float
    """The share of the time in which a server computes a batch."""
    loop: float
    """The share of the time in which a server's event loop works. It is one thread: 1 is the most."""

    def between(self, begin_s: float, end_s: float) -> Figures:
        """The figures of the calls that arrived in a part of the time."""
        return figures_of(self.seen, begin_s, end_s)

    def windows(self, seconds: float) -> Iterator[tuple[float, Figures]]:
        """Yield the beginning of each span of so many seconds, counted from `begin_s`, and its figures."""
        for at in np.arange(self.begin_s, self.end_s - seconds / 2, seconds).tolist():
            yield at - self.begin_s, self.between(at, at + seconds)

    def recovered_s(self, times: float = 2.0, seconds: float = 5.0) -> float | None:
        """Return how many seconds after the loss the first span of `seconds` begins from which on no call
        fails and p99 is at most so many times what it was before; None if that is never seen."""
        lost_at = self.begin_s + self.cluster.lost_s
        most = times * self.between(self.begin_s, lost_at).p99_s
        good_since: float | None = None
        for at, found in self.windows(seconds):
            if at < self.cluster.lost_s:
                continue
            if found.failed or found.p99_s > most:
                good_since = None
            elif good_since is None:
                good_since = at - self.cluster.lost_s
        return good_since

    def cost(self, prices: Prices) -> float:
        """What a tenant costs a month: servers, their disks, and the bucket."""
        disk = (self.module_disk_bytes + self.plot_disk_bytes) / 1e9
        server = prices.server_hour * MONTH_H + disk * prices.disk_month
        load, costs = self.load, self.costs
        bucket = (load.tenants * costs.file_bytes + load.ngrams * costs.gram_bytes) / 1e9
        return (self.cluster.replicas * server + bucket * prices.bucket_month) / load.tenants


def figures_of(seen: NDArray[np.float64], begin_s: float, end_s: float) -> Figures:
    """Return the figures of the calls that arrived from `begin_s` to before `end_s`."""
    some = seen[(seen[:, 0] >= begin_s) & (seen[:, 0] < end_s)]
    good = some[some[:, 1] >= 0]

    def share(column: int, value: int = 1) -> float:
        return float((good[:, column] == value).mean()) if len(good) else 0.0

    times: Any = np.quantile(good[:, 1], [0.5, 0.99]) if len(good) else (np.inf, np.inf)
    return Figures(
        calls=len(some),
        failed=len(some) - len(good),
        calls_s=len(good) / (end_s - begin_s),
        p50_s=float(times[0]),
        p99_s=float(times[1]),
        module_memory=share(2, MEMORY),
        module_disk=share(2, DISK),
        module_bucket=share(2, BUCKET),
        plot_bucket=share(3, BUCKET),
        passed=share(4),
        spilled=share(5),
    )
