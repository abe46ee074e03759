"""The part of a model's record that tells of the background job `improve`: its trials and its gain."""

from __future__ import annotations

from pydantic import Field

from hmi.record import Record


class Tried(Record):
    """One thing that a job `improve` tried. Scores are on held-out rows that no version was trained on."""

    name: str
    """The trial, in words."""
    before: float | None = Field(default=None, allow_inf_nan=False)
    """The score of the version that answers. None: nothing was compared."""
    after: float | None = Field(default=None, allow_inf_nan=False)
    """The score of what was tried."""
    rows: int = 0
    """The number of held-out rows that decided."""
    sure: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    """The share of resamples of these rows in which what was tried is better: by the score, or by the
    likelihood of the right answers, whichever share is greater."""
    cpu_s: float = Field(ge=0, allow_inf_nan=False)
    """The CPU seconds that it took."""
    why: str
    """A sentence that says why it was taken or left, or why it stopped."""


class Improvement(Record):
    """The newest job `improve` of a model: what it is to improve, and how it ended."""

    job: str
    version: int
    """The number of the version that it is to improve."""
    queued: str
    """RFC 3339 in UTC."""
    ended: str | None = None
    """RFC 3339 in UTC. A job that has not ended, that was cancelled or that failed has None."""
    tried: tuple[Tried, ...] = ()
    published: int | None = None
    """The number of the version that the job published; None: it published none."""
    gain: float | None = Field(default=None, allow_inf_nan=False)
    """The published version's score on the held-out rows, less that of the version before."""
    cpu_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """The CPU seconds of all attempts at the job."""
    why: str | None = None
    """A sentence that says why the job stopped."""
