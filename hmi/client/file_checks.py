"""The answer about a file that was checked without a training."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from hmi.client.answers import Answer, Task


class LineProblem(Answer):
    line: int
    message: str


class FileCheck(Answer):
    """What a job would make of a file. `options`: those by which a file that is not usable could be read."""

    usable: bool
    error: str | None = None
    kind: Literal["rows", "corpus"]
    task: Task | None = None
    read: str | None = None
    count: int
    whole: bool
    labels: dict[str, int] = Field(default_factory=dict)
    problems: list[LineProblem] = Field(default_factory=list)
    bad_rows: int = 0
    notes: list[str] = Field(default_factory=list)
    options: dict[str, Any] = Field(default_factory=dict)
    sample: list[dict[str, Any]] = Field(default_factory=list)
