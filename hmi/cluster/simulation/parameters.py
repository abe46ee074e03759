"""The parameters of a simulation: what servers cost, what is asked of them, and how many there are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from hmi.errors import InvalidInput

Routing = Literal["tenant", "domain", "random"]
HOUR_S: Final = 3600.0
MONTH_H: Final = 730.0


@dataclass(frozen=True)
class Costs:
    """What one server takes for its work. Most defaults were measured (docs/operations/capacity.md).

    All times are in seconds. Those of the processor are of one core.
    """

    call_s: float = 1.1e-3
    """Processor time of the event loop for a call: HTTP, the key, JSON, tokens."""
    forward_s: float = 1.0e-3
    """The same of the server that passes a call on and its answer back."""
    batch_s: float = 0.8e-3
    """Processor time of a batch without its texts."""
    text_s: float = 0.15e-3
    """Processor time of a text without its tokens: look-up, module, head."""
    token_s: float = 21e-6
    """Processor time of a token."""
    wait_s: float = 0.5e-3
    """Time of a call in which nothing computes: one thread wakes another, the caller reads the answer."""
    network_s: float = 0.0
    """Time of a message from one server to another."""
    load_s: float = 5.5e-3
    """Time to load a module from the local disk, nearly all of it on the processor."""
    bucket_s: float = 0.03
    """Time to fetch a file from the bucket, without its bytes: two requests."""
    bucket_bytes_s: float = 100e6
    """Bytes a second that a server gets from the bucket for one file."""
    page_s: float = 18e-6
    """Time of a look-up whose row must be read from the disk. A text's rows are read together."""
    module_bytes: int = 864_000
    """Memory of a model's module and head."""
    file_bytes: int = 380_000
    """Their file."""
    gram_bytes: int = 1_250
    """Bytes of an n-gram in a PLOT, its index included."""
    batch_most_s: float = 0.02
    """`batch_ms`: the longest batch of several texts. One of a single tenant may take twice as long."""
    unreachable_s: float = 1.5
    """Time until a server knows that another machine is gone: it waits, and asks whether that lives."""
    gone_s: float = 35.0
    """Time until a server that is gone is taken off the list."""


@dataclass(frozen=True)
class Load:
    """What is asked: calls at times that do not depend on the answers (a Poisson process)."""

    calls_s: float
    """Calls a second of all tenants together."""
    tenants: int = 1_000_000
    zipf: float = 1.0
    """The tenant of rank r makes calls in proportion to r to the power of minus this."""
    texts: int = 1
    """Texts of a call."""
    tokens: float = 56.0
    """Mean tokens of a text."""
    spread: float = 0.45
    """Standard deviation of the logarithm of a text's tokens; 0: all texts have `tokens`."""
    direct: float = 0.0
    """Share of calls that go to the server which answered their tenant's last call, as a client library may
    send them. The others go to any server."""
    domains: int = 1_000
    """Domains, each with a PLOT. A tenant's model uses one."""
    ngrams: int = 1_000_000_000
    """N-grams of all domains together. The domains are of one size."""
    gram_zipf: float = 1.0
    """As `zipf`, for the n-grams of a domain by how often texts have them."""

    def __post_init__(self) -> None:
        for name in ("calls_s", "tenants", "texts", "tokens", "domains", "ngrams"):
            if getattr(self, name) <= 0:
                raise InvalidInput(f"{name} is {getattr(self, name)}: give more than 0", field=name)
        if not 0 <= self.direct <= 1:
            raise InvalidInput(f"direct is {self.direct}: it is a share, from 0 to 1", field="direct")


@dataclass(frozen=True)
class Cluster:
    """The servers."""

    replicas: int
    routing: Routing = "tenant"
    pool_bytes: int = 8 << 30
    """Memory of a server for modules."""
    plot_bytes: int = 32 << 30
    """Memory of a server for rows of PLOTs: what the system has left for mapped files."""
    served_s: float = 7 * 24 * HOUR_S
    """How long the servers have run. What a server needed in this time is on its disk."""
    cores: float = math.inf
    """Cores that all servers share, if they run on one machine. Else each server has enough of its own."""
    others: float = 0.0
    """Threads of other programs that always want one of these cores."""
    lost: int = 0
    """Servers that vanish, as a zone does: those of the lowest numbers."""
    lost_s: float = 0.0
    """When, in seconds from the beginning of what is measured."""
    balancer_s: float = 5.0
    """Time after which callers' calls go to no lost server any more. Until then those that do fail."""

    def __post_init__(self) -> None:
        if self.replicas < 1 or not 0 <= self.lost < self.replicas:
            raise InvalidInput(
                f"{self.replicas} replicas of which {self.lost} are lost: give 1 or more, and lose fewer",
                field="replicas",
            )


@dataclass(frozen=True)
class Prices:
    """What an operator pays, in any one currency."""

    server_hour: float
    """A server for an hour."""
    disk_month: float
    """A gigabyte of a server's disk for a month."""
    bucket_month: float
    """A gigabyte in the bucket for a month."""
