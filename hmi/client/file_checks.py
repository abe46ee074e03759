"""The answer about a file that was checked without a training."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from hmi.client.answers import Answer, Task


class LineProblem(Answer):
    line: int
    message: str


class SampleEntity(Answer):
    """An entity in a row of the sample. `end_word` is the index after its last word."""

    label: str
    start_word: int
    end_word: int


class FileCheck(Answer):
    """What a job would make of a file.

    Of a file that is not usable, `options` are those by which it could be read, and `text_columns` the
    columns that may hold the text. `entities`: how often each type of entity occurs; None if no tags mark
    entities.
    """

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
    entities: dict[str, int] | None = None
    sample_entities: list[list[SampleEntity]] = Field(default_factory=list)
    text_columns: list[str] = Field(default_factory=list)
