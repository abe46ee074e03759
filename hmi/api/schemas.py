"""Schemas that all calls share: strict bases, names, the error shape, jobs.

One pydantic model per request and per answer validates and generates the OpenAPI document.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from hmi.core import (
    DOMAIN_PATTERN,
    ID_PATTERN,
    MODEL_PATTERN,
    NAME_PATTERN,
    JobCost,
    JobKind,
    JobState,
    Progress,
)

Name = Annotated[str, StringConstraints(pattern=f"^{NAME_PATTERN}$")]
ModelName = Annotated[
    str,
    StringConstraints(pattern=f"^{MODEL_PATTERN}$"),
    Field(description="tenant.model", examples=["acme.intent"]),
]
DomainName = Annotated[
    str,
    StringConstraints(pattern=f"^{DOMAIN_PATTERN}$"),
    Field(description="root/branch[/sub…]; '.' is accepted for '/'", examples=["minilm/biomedical"]),
]
JobId = Annotated[str, StringConstraints(pattern=f"^{ID_PATTERN}$")]
Alpha = Annotated[
    float, Field(ge=0, le=100, description="Percent of the corpus' trigram occurrences that the PLOT covers.")
]


NEXT = "Pass as `after` for the next page; null on the last page. An earlier page may be short or even empty."


class Request(BaseModel):
    """A request body: unknown fields and wrong types are refused, never guessed at."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Query(BaseModel):
    """Query parameters, which arrive as text."""

    model_config = ConfigDict(extra="forbid")


class Answer(BaseModel):
    """An answer."""

    model_config = ConfigDict(extra="forbid")


class ErrorBody(Answer):
    kind: str = Field(description="Stable name that clients may match on.")
    message: str = Field(description="What is wrong and what to do.")
    details: dict[str, Any] = Field(description="`field` and others, depending on the kind.")
    request_id: str


class ErrorAnswer(Answer):
    """The native shape of every error."""

    error: ErrorBody


class JobAccepted(Answer):
    """The operation runs as a job: follow `Location`."""

    job: str


class JobView(Answer):
    """A long operation and where it stands."""

    job: str
    kind: JobKind
    state: JobState
    tenant: str | None = Field(description="The tenant that owns the job; null for an administrator's.")
    target: str = Field(description="The root, domain or model that it makes.")
    created: str
    started: str | None
    ended: str | None
    attempts: int
    cancel_requested: bool
    progress: Progress
    result: dict[str, Any] | None
    error: dict[str, Any] | None = Field(description="`kind`, `message` and others if the job failed.")
    cost: JobCost | None = Field(
        description="What the job's process used; null until the job ended, and if the process was killed."
    )


class JobList(Answer):
    jobs: list[JobView]
    next: str | None = Field(description=NEXT)


class JobQuery(Query):
    tenant: Name | None = None
    state: JobState | None = None
    kind: JobKind | None = None
    after: JobId | None = None
    limit: int = Field(default=100, ge=1, le=1000)


class Health(Answer):
    """Liveness and readiness."""

    status: Literal["alive", "ready", "starting", "draining"]


class NoBody(Answer):
    """An empty answer: the call succeeded."""

    done: Literal[True] = True
