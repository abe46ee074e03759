"""Answers about domains."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from hmi.api.schemas import Answer, Request


class ChangeDomain(Request):
    """What is left out stays as it is."""

    record_misses: bool | None = Field(
        default=None,
        description="true keeps which n-grams of users' texts the PLOT lacks, and how often; false deletes them.",
    )


class GrowDomain(Request):
    min_count: int = Field(default=5, ge=1, le=2**31, description="How often an n-gram must have been missed.")


class DomainVersionView(Answer):
    """One published version of a domain's PLOT."""

    version: str
    created: str
    entries: dict[str, int]
    bytes: int
    alpha: float | None = Field(description="Percent of trigram occurrences covered; what a budget came to.")
    budget_bytes: int | None = Field(description="The budget that it was built with; null where alpha was given.")
    report: dict[str, Any] = Field(description="What the build counted.")


class DomainView(Answer):
    """A branch of a version tree. `entries` are the current version's own, without its ancestors'."""

    domain: str
    root: str
    parent: str | None = Field(description="null for a root's own PLOT.")
    children: list[str]
    current: str
    entries: dict[str, int] = Field(description="Distinct n-grams by order: trigrams, bigrams, unigrams.")
    bytes: int = Field(description="Of all kept versions.")
    alpha: float | None
    models: int = Field(description="Models of which a kept version was fine-tuned on this domain.")
    record_misses: bool = Field(description="Whether n-grams of users' texts that the PLOT lacks are kept, to grow it.")
    versions: list[DomainVersionView] = Field(description="Newest first.")


class DomainList(Answer):
    domains: list[DomainView]
