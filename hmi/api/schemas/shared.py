"""The schemas that calls share: base classes, names, errors, jobs.

Each body and each answer is one pydantic model, which validates it and documents it in openapi.json.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from hmi.core import (
    DOMAIN_PATTERN,
    ID_PATTERN,
    MODEL_PATTERN,
    NAME_PATTERN,
    JobCost,
    JobKind,
    JobState,
    Pacing,
    Progress,
)
from hmi.jobs.options import Reading
from hmi.words import LEVEL_PATTERN

Name = Annotated[str, StringConstraints(pattern=f"^{NAME_PATTERN}$")]
ModelName = Annotated[
    str,
    StringConstraints(pattern=f"^{MODEL_PATTERN}$"),
    Field(description="tenant.model", examples=["acme.intent"]),
]
LevelName = Annotated[
    str,
    StringConstraints(pattern=f"^{LEVEL_PATTERN}$"),
    Field(description="tenant.model, or tenant.model@version", examples=["acme.small", "acme.intent@1"]),
]
DomainName = Annotated[
    str,
    StringConstraints(pattern=f"^{DOMAIN_PATTERN}$"),
    Field(description="root/branch[/sub…]; '.' is accepted for '/'", examples=["minilm/biomedical"]),
]
VersionNumber = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,9}$")]
JobId = Annotated[str, StringConstraints(pattern=f"^{ID_PATTERN}$")]
Alpha = Annotated[
    float, Field(ge=0, le=100, description="Percent of the corpus' trigram occurrences that the PLOT covers.")
]
LONGEST_MS = 3_600_000
"""The longest deadline."""
DeadlineMs = Annotated[float, Field(gt=0, le=LONGEST_MS)]

NEXT = "Pass as `after` for the next page; null on the last page. An earlier page may be short or even empty."


class Request(BaseModel):
    """A request body. Unknown fields and wrong types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Change(Request):
    """Changes to a record: a field that is left out or null is not changed. A body that changes nothing is
    refused."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if all(getattr(self, name) is None for name in type(self).model_fields):
            raise ValueError(f"changes nothing: give one or more of {', '.join(type(self).model_fields)}")
        return self


class Query(BaseModel):
    """The query parameters of a call. They arrive as text, so their types are converted."""

    model_config = ConfigDict(extra="forbid")


class Answer(BaseModel):
    """The JSON body of an answer."""

    model_config = ConfigDict(extra="forbid")


class ErrorBody(Answer):
    kind: str = Field(description="A stable name, which clients may match on.")
    message: str = Field(description="What is wrong, and what to do about it.")
    details: dict[str, Any] = Field(description="`field` and other details, depending on the kind.")
    request_id: str


class ErrorAnswer(Answer):
    """An error."""

    error: ErrorBody


class JobAccepted(Answer):
    """The operation runs as a job, which `Location` shows."""

    job: str


class JobView(Answer):
    """A job: a long operation, and its progress."""

    job: str
    kind: JobKind
    state: JobState
    tenant: str | None = Field(description="The tenant that owns the job; null for an administrator's.")
    target: str = Field(description="The root, domain or model that the job creates or changes.")
    created: str
    started: str | None
    ended: str | None
    attempts: int
    server: str | None = Field(
        description="The URL of the server that runs the job, or ran it last. Null while the job waits, if "
        "that server has left, and without a bucket."
    )
    cancel_requested: bool
    progress: Progress
    result: dict[str, Any] | None
    error: dict[str, Any] | None = Field(description="`kind`, `message` and other details if the job failed.")
    cost: JobCost | None = Field(
        description="What the job's process used; null until the job ends, and if its process was killed."
    )
    pacing: Pacing | None = Field(
        description="How a running background job gives way to requests; null for other jobs."
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
    """The state of the server, for liveness and readiness checks."""

    status: Literal["alive", "ready", "starting", "draining"]


class NoBody(Answer):
    """An empty answer: the call succeeded."""

    done: Literal[True] = True


class PathRef(Request):
    """A file that is already on the server."""

    path: str = Field(
        min_length=1,
        max_length=1024,
        description="Relative to <data>/uploads/<tenant>; for administrators, to <data>/uploads.",
    )


READING = Field(default=Reading(), description="How to read the files, as the options of a training say.")
