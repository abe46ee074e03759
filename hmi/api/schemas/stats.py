"""The answer about stored and held resources."""

from __future__ import annotations

from pydantic import Field

from hmi.api.schemas.shared import Answer


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
