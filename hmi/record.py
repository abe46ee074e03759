"""The base of the registry's records, and their form of times."""

from __future__ import annotations

from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """An immutable record in the registry, stored as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def now() -> str:
    """The current time as RFC 3339 in UTC, with milliseconds. Such times sort as texts."""
    return time_text(datetime.now(UTC))


def time_text(at: datetime) -> str:
    """A time in the form of `now`. Raises OverflowError outside the years 1 to 9999."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
