"""The lines of the audit log, as a call gets them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AwareDatetime, ConfigDict, Field, StringConstraints

from hmi.api.schemas.shared import Answer, Name, Query
from hmi.stores.audit.reading import CURSOR_PATTERN

Position = Annotated[str, StringConstraints(pattern=f"^{CURSOR_PATTERN}$")]


class AuditQuery(Query):
    tenant: Name | None = None
    since: AwareDatetime | None = None
    after: Position | None = None
    limit: int = Field(default=100, ge=1, le=1000)


class AuditLine(Answer):
    """A line of the audit log. Fields that a line does not have are null."""

    model_config = ConfigDict(extra="ignore")

    n: int = Field(description="Lines are numbered from 1 without gaps.")
    at: str
    event: str = Field(
        description="`begun` and `change`: a change and its outcome; `access`: an administrator's call that "
        "changes nothing; `refused`; `server`; `opened`, `dropped`: files of the log itself."
    )
    who: str | None = Field(
        default=None, description="A tenant, `administrator`, `os:USER` for a command on the data folder."
    )
    key: str | None = Field(default=None, description="The id of the key.")
    tenant: str | None = Field(default=None, description="The tenant that the call was about.")
    call: str | None = Field(default=None, description="Method and route, or the command.")
    object: dict[str, Any] | None = Field(default=None, description="Names and ids of what it was about.")
    outcome: str | None = Field(default=None, description="`ok`, or the kind of the error.")
    reason: str | None = None
    request: str | None = Field(default=None, description="The X-Request-Id.")
    address: str | None = Field(default=None, description="The client's.")
    forwarded: str | None = Field(default=None, description="The X-Forwarded-For, which anybody can write.")
    begun: int | None = Field(default=None, description="The number of the line that says it began.")
    repeated: int | None = Field(default=None, description="How many more such calls followed in a minute.")
    left_out: int | None = Field(default=None, description="How many refusals before this were not written.")
    hash: str


class AuditPage(Answer):
    lines: list[AuditLine]
    position: str | None = Field(description="Pass as `after` to read on, now or later.")
    more: bool = Field(description="Whether there are more lines to read now.")
