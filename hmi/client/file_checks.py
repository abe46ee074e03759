"""The answer of a call that reads a file of training rows as a job would, and trains nothing."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from hmi.client.answers import Answer, Task


class LineProblem(Answer):
    """A bad row. `line` is its line in the file, from 1; `message` says what is wrong with it."""

    line: int
    message: str


class SampleEntity(Answer):
    """An entity in a row of the sample: its words are those from `start_word` up to, but without, `end_word`,
    counted from 0."""

    label: str
    start_word: int
    end_word: int


class FileCheck(Answer):
    """How a job would read a file, without starting one.

    - `usable`: False if a job would refuse the file; `error` then says why. `options` are then options with
      which a job may read it, and `text_columns` names the columns that may hold the text.
    - `read`: the format in words. `count`: the rows or documents. `whole`: False if only the file's beginning
      was read, to which all figures then refer.
    - `labels`: the number of rows with each label. `entities`: how often each type of entity occurs; None if
      the tags mark none.
    - `bad_rows`: their number; `problems` has the first ones. `notes`: remarks on rows that are not wrong.
    - `sample`: some rows as a job would read them; `sample_entities`: the entities of each.
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
