"""Answers about resources."""

from __future__ import annotations

from pydantic import Field

from hmi.api.schemas import Answer


class StatsView(Answer):
    """What is kept, by tier."""

    counts: dict[str, int] = Field(description="Roots, domains, tenants, models and their versions, jobs.")
    plot_entries: dict[str, int] = Field(description="N-grams of the domains' current versions, by order.")
    plot_lookups: dict[str, dict[str, int]] = Field(
        description="Tokens looked up since this server started, by domain and by order of the n-gram found."
    )
    disk_bytes: dict[str, int] = Field(description="Bytes on disk, by kind of artefact.")
    memory_bytes: dict[str, int] = Field(description="Bytes of the adapters that the pool holds in memory.")
