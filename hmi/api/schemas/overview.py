"""The query and the answer of the overview, from which the page at / draws its figures."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hmi.api.schemas.shared import Answer, Query
from hmi.core import Scope

OWN = "; null for a tenant's key"


class OverviewQuery(Query):
    minutes: int = Field(default=60, ge=1, le=1440, description="The minutes to look back.")


class CallerView(Answer):
    """The caller, by its key."""

    tenant: str | None = Field(description="Null for an administrator.")
    scopes: list[Scope]
    keyless: bool = Field(
        description="Whether the server answers without keys, as no administrator's exists."
    )


class UseView(Answer):
    """The amount that was answered, and the time of compute that it took."""

    requests: int
    texts: int
    tokens: int
    compute_ms: float


class PointView(UseView):
    """A stretch of time. Divide counts by `seconds` for rates: the last point has only begun."""

    at: float = Field(description="Its beginning, in Unix time.")
    seconds: float
    refused: int | None = Field(
        description=f"Calls refused for want of room, of quota, or of time before their deadline{OWN}."
    )
    failed: int | None = Field(description=f"Calls that failed by a fault of the server{OWN}.")
    p50_ms: float | None = Field(description=f"The median time of an answer; null without answers{OWN}.")
    p95_ms: float | None = Field(description=f"The time within which 95% were answered{OWN}.")
    queue_texts: int | None = Field(description=f"Texts that waited at its end{OWN}.")
    known: bool = Field(
        description="False if the server did not keep this tenant's figures of the minute, since many other "
        "tenants were busier."
    )


class TenantUseView(UseView):
    """A tenant's usage over the time looked at."""

    tenant: str
    texts_by_point: list[int | None] = Field(description="Null where its figures were not kept.")


class QueueView(Answer):
    texts: int
    tokens: int
    oldest_ms: float


class PoolView(Answer):
    """Modules of tenants' models in memory."""

    bytes: int
    limit_bytes: int
    hits: int
    misses: int
    evictions: int


class OverviewView(Answer):
    """The server at a glance: all of it for an administrator, the own part for a tenant's key."""

    caller: CallerView
    version: str = Field(description="The server's release.")
    phase: Literal["serving", "draining"]
    ready: bool = Field(description="Whether inference is served.")
    started: str
    counts: dict[str, int] = Field(description="Roots, domains, tenants and models that the caller reaches.")
    since_start: UseView
    queue: QueueView | None = Field(description=f"What waits for a batch{OWN}.")
    pool: PoolView | None = Field(
        description="Null for a tenant's key, and before the first call to infer of a command."
    )
    memory_bytes: dict[str, int] | None = Field(
        description=f"Resident memory: `anonymous`, the process's own, and `files`, mapped ones{OWN}."
    )
    jobs: dict[str, int] | None = Field(description=f"Jobs by state{OWN}.")
    plot_lookups: dict[str, int] | None = Field(
        description=f"Tokens since the start, by the n-gram that answered{OWN}."
    )
    points: list[PointView] = Field(description="Oldest first; at most 120.")
    tenants: list[TenantUseView] = Field(description="The 20 tenants with the most compute, busiest first.")


class StatsView(Answer):
    """What is stored on disk and held in memory, by tier."""

    counts: dict[str, int] = Field(description="Roots, domains, tenants, models and their versions, jobs.")
    plot_entries: dict[str, int] = Field(
        description="N-grams that the domains' current versions store, by order."
    )
    plot_lookups: dict[str, dict[str, int]] = Field(
        description="Tokens looked up since this server started, by domain and by order of the n-gram found."
    )
    disk_bytes: dict[str, int] = Field(description="Bytes on disk, by kind of artefact.")
    memory_bytes: dict[str, int] = Field(
        description="Bytes of the adapters that the adapter pool holds in memory; and resident bytes of the "
        "process: its own (anonymous), and of mapped files such as PLOTs."
    )
