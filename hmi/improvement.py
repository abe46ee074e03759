"""What a model's record keeps of the background job `improve`: what it tried, and what that gained."""

from __future__ import annotations

from pydantic import Field

from hmi.record import Record


class Tried(Record):
    """One thing that a job `improve` tried. Scores are on held-out rows that no version was trained on."""

    name: str
    """What was tried, in words."""
    before: float | None = Field(default=None, allow_inf_nan=False)
    """The score of the version that answers. None: nothing was compared."""
    after: float | None = Field(default=None, allow_inf_nan=False)
    """The score of what was tried."""
    rows: int = 0
    """The number of held-out rows that decided."""
    sure: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    """The share of resamples of these rows in which what was tried is better."""
    cpu_s: float = Field(ge=0, allow_inf_nan=False)
    """The CPU seconds that it took."""
    why: str
    """Why it was taken or left, or why it stopped, as a sentence."""


class Improvement(Record):
    """The newest job `improve` of a model: what it is to improve, and how it ended."""

    job: str
    version: int
    """The number of the version that it is to improve."""
    queued: str
    """RFC 3339 in UTC."""
    ended: str | None = None
    """None while the job has not ended. A job that was cancelled, or that failed, leaves it None."""
    tried: tuple[Tried, ...] = ()
    published: int | None = None
    """The number of the version that the job published; None: it published none."""
    gain: float | None = Field(default=None, allow_inf_nan=False)
    """How much higher the published version scores on the held-out rows."""
    cpu_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """The CPU seconds of all attempts at the job."""
    why: str | None = None
    """Why the job stopped, as a sentence."""
