"""Rates of tenants' calls to infer, whatever protocol and key they come by.

A call is charged to the tenants whose models it names, before the engine gets it: one request for each ask,
and about as many tokens as its texts will have. Once it is answered, the estimate is replaced by the tokens
that were counted. A call that is refused is charged nothing.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from hmi.api.access.buckets import Buckets, Rate
from hmi.core import ModelId
from hmi.errors import DeadlineExceeded, QuotaExceeded
from hmi.tenancy import NO_LIMITS, TenantLimits

REQUESTS, TOKENS = "requests_per_s", "tokens_per_s"
RATES = {REQUESTS: "requests", TOKENS: "tokens"}
"""The limits that are rates, and what they count."""
SLOWEST_PER_S = 0.001
"""Limits below this count as this, so that the waits are numbers which a client can use."""
MOST = 20_000
"""The most tenants whose rates are remembered."""
SPECIAL_TOKENS, CHARACTERS_A_TOKEN, MOST_TOKENS = 2, 4, 8 * 512
"""The estimate of a text's tokens: a token for four characters, and two more, up to eight windows."""


class Charge(NamedTuple):
    """An amount that a limit concerns."""

    quota: str
    """The name of the limit."""
    tenant: str
    rate: Rate
    amount: float


class Charged(Protocol):
    """One text of a call, as far as its charge is concerned."""

    @property
    def model(self) -> ModelId: ...

    @property
    def ask(self) -> int: ...

    @property
    def characters(self) -> int: ...


class Counted(Protocol):
    """The answer to one text, as far as its charge is concerned."""

    @property
    def model(self) -> ModelId: ...

    @property
    def tokens(self) -> int: ...


@dataclass(frozen=True)
class QuotaState:
    """A limit that is a rate, as a tenant has it now."""

    quota: str
    """The name of the limit."""
    rate: Rate
    left: float
    """The amount that may be taken now, below 0 if the bucket is in debt."""
    full_s: float
    """Seconds until the bucket is full again."""


@dataclass
class Rates:
    """The rates of all tenants. Used on the event loop's thread only."""

    limits_of: Callable[[str], TenantLimits] = lambda tenant: NO_LIMITS
    burst_s: float = 10.0
    """A bucket holds what flows in this time."""
    buckets: dict[str, Buckets] = field(default_factory=lambda: {name: Buckets() for name in RATES})

    _known: dict[str, tuple[TenantLimits, dict[str, Rate]]] = field(default_factory=dict)
    """The rates of tenants, as made from these limits."""

    @contextmanager
    def charged(self, requests: Sequence[Charged]) -> Iterator[Callable[[Sequence[Counted]], None]]:
        """Context manager: a call of these texts is under way in the block, and charged to its tenants.

        Yields a function that takes the results and charges their real tokens instead of the estimate.
        Raises QuotaExceeded, which says when there is enough, before anything is charged. If the block
        raises, the charge is taken back, unless work was done, as the results say that it had by then, or
        may have been done: if the deadline passed, the call was cancelled, or its caller has gone.
        """
        rates = {tenant: self._rates(tenant) for tenant in {r.model.tenant for r in requests}}
        if not any(rates.values()):
            yield _nothing
            return
        charges = list(_charges(requests, rates))
        self._check(charges)
        self._take(charges)
        done = 0

        def settle(results: Sequence[Counted]) -> None:
            nonlocal done
            done = sum(result.tokens for result in results)
            self._settle(charges, results)

        try:
            yield settle
        except (DeadlineExceeded, ConnectionError):
            raise
        except Exception:
            if not done:
                self._take(charges, -1)
            raise

    def states(self, tenant: str) -> list[QuotaState]:
        """The tenant's limits that are rates."""
        found = []
        for quota, rate in self._rates(tenant).items():
            left = self.buckets[quota].left(tenant, rate)
            found.append(QuotaState(quota, rate, left, (rate.capacity - left) / rate.per_s))
        return found

    def _check(self, charges: Sequence[Charge]) -> None:
        """Raise QuotaExceeded unless every tenant has enough of everything. Of several reasons the error
        names the one that takes longest."""
        waits = [self.buckets[c.quota].wait_s(c.tenant, c.rate, c.amount) for c in charges]
        wait_s = max(waits)
        if not wait_s:
            return
        short = charges[waits.index(wait_s)]
        what, rate, retry_after_s = RATES[short.quota], short.rate, math.ceil(wait_s)
        raise QuotaExceeded(
            f"tenant {short.tenant} sends more {what} than it may: {rate.per_s:g} a second in the long run, "
            f"and {rate.capacity:g} at once; try again in {retry_after_s} s",
            quota=short.quota,
            limit=rate.per_s,
            retry_after_s=retry_after_s,
        )

    def _take(self, charges: Iterable[Charge], times: float = 1) -> None:
        for charge in charges:
            self.buckets[charge.quota].take(charge.tenant, charge.rate, times * charge.amount)

    def _settle(self, charges: list[Charge], results: Sequence[Counted]) -> None:
        """Charge the tokens that were counted instead of those that were estimated, and note them."""
        counted: Counter[str] = Counter()
        for result in results:
            counted[result.model.tenant] += result.tokens
        for i, charge in enumerate(charges):
            if charge.quota == TOKENS:
                charges[i] = charge._replace(amount=counted[charge.tenant])
                self._take([charge._replace(amount=counted[charge.tenant] - charge.amount)])

    def _rates(self, tenant: str) -> dict[str, Rate]:
        """The tenant's rates, by the names of their limits; {}: it has none."""
        limits = self.limits_of(tenant)
        if limits.requests_per_s is None and limits.tokens_per_s is None:
            return {}
        found = self._known.get(tenant)
        if found is None or found[0] is not limits:
            given = {name: getattr(limits, name) for name in RATES}
            per_s = {name: max(SLOWEST_PER_S, each) for name, each in given.items() if each is not None}
            rates = {name: Rate(each, max(1.0, each * self.burst_s)) for name, each in per_s.items()}
            if len(self._known) > MOST:
                self._known.clear()
            self._known[tenant] = found = limits, rates
        return found[1]


def _charges(requests: Sequence[Charged], rates: Mapping[str, Mapping[str, Rate]]) -> Iterator[Charge]:
    """The amounts that a call of these texts is charged for."""
    asks: defaultdict[str, set[int]] = defaultdict(set)
    tokens: Counter[str] = Counter()
    for request in requests:
        tenant = request.model.tenant
        asks[tenant].add(request.ask)
        tokens[tenant] += _estimate(request)
    for tenant, mine in rates.items():
        for quota, rate in mine.items():
            yield Charge(quota, tenant, rate, tokens[tenant] if quota == TOKENS else len(asks[tenant]))


def _estimate(request: Charged) -> int:
    """About how many tokens a text has."""
    return min(MOST_TOKENS, SPECIAL_TOKENS + math.ceil(request.characters / CHARACTERS_A_TOKEN))


def _nothing(results: Sequence[Counted]) -> None:
    """Charge nothing, to tenants without such limits."""
