"""Requests and answers about domains."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StringConstraints

from hmi.api.schemas.shared import Alpha, Answer, Change, DomainName, PathRef, Request
from hmi.jobs.options import BuildPlotOptions, EncodingName


class ChangeDomain(Change):
    """Changes to a domain. A field that is left out is not changed; at least one must be given."""

    record_misses: bool | None = Field(
        default=None,
        description="true counts the n-grams of users' texts that the PLOT lacks; false stops and "
        "deletes the counts.",
    )


class GrowDomain(Request):
    min_count: int = Field(
        default=5, ge=1, le=2**31, description="An n-gram is added if it was missed at least this often."
    )


class DomainVersionView(Answer):
    """One published version of a domain's PLOT."""

    version: str
    created: str
    entries: dict[str, int]
    bytes: int
    alpha: float | None = Field(
        description="Percent of the corpus' trigram occurrences that it covers; given with a budget, too."
    )
    budget_bytes: int | None = Field(
        description="The budget that it was built with; null if it was built with alpha."
    )
    report: dict[str, Any] = Field(description="Figures about the build.")


class DomainView(Answer):
    """A branch of a version tree. `entries` counts the current version's own n-grams, without its
    ancestors'."""

    domain: str
    root: str
    parent: str | None = Field(description="null for a root's own PLOT.")
    children: list[str]
    current: str
    entries: dict[str, int] = Field(description="Distinct n-grams by order: trigrams, bigrams, unigrams.")
    bytes: int = Field(description="Bytes on disk of all kept versions.")
    alpha: float | None
    models: int = Field(description="Models of which a kept version was fine-tuned on this domain.")
    record_misses: bool = Field(description="Whether the n-grams that users' texts miss are recorded.")
    versions: list[DomainVersionView] = Field(description="Newest first.")


class DomainList(Answer):
    domains: list[DomainView]


class CreateDomain(Request):
    domain: DomainName
    alpha: Alpha | None = Field(default=None, description="Default 50, unless options.budget_bytes is given.")
    pretrain: bool = Field(default=False, description="Continue pretraining the lower layers on the corpus.")
    corpus: PathRef | None = Field(
        default=None, description="The corpus, unless it is sent as a multipart part."
    )
    options: BuildPlotOptions = BuildPlotOptions()


class UpdateDomain(Request):
    alpha: Alpha | None = Field(
        default=None, description="Default: the alpha or the budget of the current version."
    )
    pretrain: bool = False
    corpus: PathRef | None = None
    options: BuildPlotOptions = BuildPlotOptions()


class EraseText(Request):
    """The texts to erase from a domain. Give `text`, `phrases` or both."""

    text: PathRef | None = Field(
        default=None, description="A corpus whose n-grams of two or more tokens go, and its passages."
    )
    keep: PathRef | None = Field(
        default=None, description="A corpus whose n-grams stay, such as the domain's corpus without the text."
    )
    phrases: list[Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1000)]] = (
        Field(
            default=[],
            max_length=1000,
            description="Words or names, each in all its forms: n-grams and passages that contain one go.",
        )
    )
    encoding: EncodingName | None = Field(
        default=None, description="The encoding of text and keep; null: recognised by their bytes."
    )
    dry_run: bool = Field(default=False, description="Only count what would go.")


class RollbackDomain(Request):
    version: str = Field(min_length=1, max_length=128, description="One of the domain's versions.")
