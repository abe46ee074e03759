"""The part of a model's answer that tells of its background job `improve`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hmi.api.schemas.shared import Answer
from hmi.core import Tried

State = Literal["queued", "running", "finished", "stopped"]


class ImprovingView(Answer):
    """The newest background job that tries what makes a model better."""

    job: str
    state: State = Field(
        description="`queued`: it waits until no other job needs its place. `finished`: it has tried what it "
        "could. `stopped`: it was cancelled, superseded, or failed."
    )
    since: str = Field(description="When it came into this state.")
    version: int = Field(description="The version that it is to improve.")
    tried: list[Tried] = Field(description="What it tried, with the scores on held-out rows.")
    published: int | None = Field(description="The version that it published; null: none.")
    gain: float | None = Field(description="How much higher that version scores on the held-out rows.")
    cpu_s: float = Field(description="The CPU seconds that it took; 0 until it has ended.")
    why: str | None = Field(description="Why it stopped; null until it has.")
    says: str = Field(description="All this as a sentence.")
