"""What the server says of the background job that makes a model better."""

from __future__ import annotations

from hmi.client.answer import Answer


class Tried(Answer):
    """One thing that a background job tried. Scores are on held-out rows."""

    name: str
    before: float | None = None
    after: float | None = None
    rows: int = 0
    sure: float | None = None
    cpu_s: float = 0.0
    why: str = ""


class Improving(Answer):
    """A model's newest background job that tries what makes it better."""

    job: str
    state: str
    since: str
    version: int
    tried: list[Tried] = []
    published: int | None = None
    gain: float | None = None
    cpu_s: float = 0.0
    why: str | None = None
    says: str = ""
