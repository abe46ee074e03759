"""One simulated server: its event loop, its modules, its queue and its batches."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Final

from hmi.cluster.simulation.clock import Clock
from hmi.cluster.simulation.parameters import Costs
from hmi.stores.tensors.adapter_pool import MOST

MEMORY, DISK, BUCKET = range(3)
"""Where a call found its tenant's module, or its domain's PLOT."""
MODULE_THREADS: Final = 2
"""Modules that are loaded or fetched at a time: that of `hmi.engine.admit.loading`, which needs torch."""


class Call:
    """A call under way."""

    __slots__ = ("arrived", "at", "entry", "left", "module", "plot", "tenant", "texts")

    def __init__(self, arrived: float, tenant: int, texts: list[float], entry: int) -> None:
        self.arrived, self.tenant, self.entry, self.at = arrived, tenant, entry, entry
        """entry, at: the servers that received the call, and that is to answer it."""
        self.texts, self.left = texts, len(texts)
        """The tokens of each text; and how many texts have no answer."""
        self.module = self.plot = MEMORY


class Replica:
    """One server. Its caches, `disk` and `plots` are filled by who makes it."""

    def __init__(self, clock: Clock, costs: Costs, pool_bytes: int, plot_s: float) -> None:
        """plot_s: seconds to fetch a PLOT."""
        self._clock, self._costs, self._plot_s = clock, costs, plot_s
        self.alive = True
        self.room = max(1, min(MOST, pool_bytes // costs.module_bytes))
        """Modules that fit into memory."""
        self.pool: OrderedDict[int, None] = OrderedDict()
        """Tenants whose modules are in memory, the least recently used first."""
        self.disk: dict[int, bool] = {}
        """Whether a tenant's module is on the disk, as far as that was asked."""
        self.plots: set[int] = set()
        """Domains whose PLOTs are on the disk."""
        self._busy, self.lag_s = False, 0.0
        """lag_s: work that waits for the event loop."""
        self._turns: deque[tuple[float, Callable[..., None], tuple[Any, ...]]] = deque()
        self._fetching: dict[int, list[tuple[Call, Callable[[], None]]]] = {}
        self._loading: dict[int, list[Callable[[], None]]] = {}
        self._line: deque[tuple[int, float]] = deque()
        self._loads = 0
        self._waiting: dict[int, deque[tuple[float, Callable[[], None]]]] = {}
        self._waiting_s: dict[int, float] = {}
        self._order: deque[int] = deque()
        self._all_s, self._computing = 0.0, False
        self.computed_s = self.handled_s = 0.0
        """Processor time of all batches that have begun, and of the event loop."""

    # The event loop

    def handle(self, seconds: float, then: Callable[..., None], *what: Any) -> None:
        """Let the event loop work for some seconds, in the order of the calls of this method."""
        self.handled_s += seconds
        self.lag_s += seconds
        self._turns.append((seconds, then, what))
        if not self._busy:
            self._busy = True
            self._clock.work(seconds, self._handled)

    def _handled(self) -> None:
        seconds, then, what = self._turns.popleft()
        self.lag_s -= seconds
        if self._turns and self.alive:
            self._clock.work(self._turns[0][0], self._handled)
        else:
            self._busy = False
        if self.alive:
            then(*what)

    # Modules and PLOTs

    def need_plot(self, call: Call, domain: int, then: Callable[[], None]) -> None:
        """Fetch a domain's PLOT, unless it is on the disk. Then call `then`."""
        if domain in self.plots:
            then()
            return
        call.plot = BUCKET
        waiting = self._fetching.setdefault(domain, [])
        waiting.append((call, then))
        if len(waiting) == 1:
            self._clock.wait(self._plot_s, self._fetched, domain)

    def _fetched(self, domain: int) -> None:
        self.plots.add(domain)
        for _, then in self._fetching.pop(domain):
            if self.alive:
                then()

    def need_module(self, call: Call, on_disk: Callable[[], bool], then: Callable[[], None]) -> None:
        """Load a tenant's module, unless it is in memory. Then call `then`.

        on_disk: whether a module is on the disk of which this server does not know.
        """
        tenant, pool = call.tenant, self.pool
        if tenant in pool:
            pool.move_to_end(tenant)
            then()
            return
        if tenant not in self.disk:
            self.disk[tenant] = on_disk()
        call.module = DISK if self.disk[tenant] else BUCKET
        waiting = self._loading.setdefault(tenant, [])
        waiting.append(then)
        if len(waiting) == 1:
            costs = self._costs
            fetch_s = 0.0 if self.disk[tenant] else costs.bucket_s + costs.file_bytes / costs.bucket_bytes_s
            self._line.append((tenant, fetch_s))
            self._load()

    def _load(self) -> None:
        while self._line and self._loads < MODULE_THREADS and self.alive:
            tenant, fetch_s = self._line.popleft()
            self._loads += 1
            if fetch_s:
                self._clock.wait(fetch_s, self._read, tenant)
            else:
                self._read(tenant)

    def _read(self, tenant: int) -> None:
        self.disk[tenant] = True
        self._clock.work(self._costs.load_s, self._loaded, tenant)

    def _loaded(self, tenant: int) -> None:
        self._loads -= 1
        self.pool[tenant] = None
        if len(self.pool) > self.room:
            self.pool.popitem(last=False)
        for then in self._loading.pop(tenant):
            if self.alive:
                then()
        self._load()

    # The queue and its batches

    def wait_s(self, tenant: int) -> float:
        """Seconds that a text of a tenant would wait, as the engine's queue predicts them."""
        return min(self._all_s, self._waiting_s.get(tenant, 0.0) * len(self._waiting))

    def put(self, tenant: int, seconds: list[float], then: Callable[[], None]) -> None:
        """Queue texts that take these seconds each. `then` is called for each when its batch has run."""
        waiting = self._waiting.get(tenant)
        if waiting is None:
            waiting = self._waiting[tenant] = deque()
            self._order.append(tenant)
        waiting.extend([(each, then) for each in seconds])
        total = sum(seconds)
        self._waiting_s[tenant] = self._waiting_s.get(tenant, 0.0) + total
        self._all_s += total
        if not self._computing:
            self._compute()

    def _compute(self) -> None:
        """Cut a batch, a text of each tenant in turn, and run it."""
        most_s = self._costs.batch_most_s * (2 if len(self._waiting) == 1 else 1)
        took, done = self._costs.batch_s, list[Callable[[], None]]()
        while self._order:
            tenant = self._order[0]
            waiting = self._waiting[tenant]
            seconds, then = waiting[0]
            if done and took + seconds > most_s:
                break
            took += seconds
            done.append(then)
            waiting.popleft()
            self._order.popleft()
            self._all_s -= seconds
            if waiting:
                self._order.append(tenant)
                self._waiting_s[tenant] -= seconds
            else:
                del self._waiting[tenant], self._waiting_s[tenant]
        self._computing = True
        self.computed_s += took
        self._clock.work(took, self._computed, done)

    def _computed(self, done: list[Callable[[], None]]) -> None:
        self._computing = False
        if not self.alive:
            return
        for then in done:
            then()
        if self._order and not self._computing:
            self._compute()
