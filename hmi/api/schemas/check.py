"""The body and the answer of the call that checks a file without training on it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from hmi.api.schemas.shared import READING, Answer, PathRef, Request
from hmi.core import Task
from hmi.jobs.options import Reading


class CheckFile(Request):
    """The settings by which to read the file. By default its columns tell the task."""

    task: Task | None = Field(default=None, description="Check it as rows of this task.")
    corpus: bool = Field(default=False, description="Check it as a domain's corpus.")
    skip_bad_rows: int = Field(default=0, ge=0, le=1_000_000, description="Accept up to this many bad rows.")
    data: PathRef | None = Field(default=None, description="The file, unless it is sent as a part.")
    options: Reading = READING


class LineProblem(Answer):
    line: int
    message: str


class SampleEntity(Answer):
    """An entity in a row of tags."""

    label: str
    start_word: int
    end_word: int = Field(description="The index after its last word.")


class CheckView(Answer):
    """The rows and errors that a job would find in the file."""

    usable: bool = Field(description="Whether a job would take it, as far as it was read.")
    error: str | None = Field(description="Why a job would refuse it, and what to do.")
    kind: Literal["rows", "corpus"]
    task: Task | None
    read: str | None = Field(description="The format that it was read as.")
    count: int = Field(description="Usable rows, or documents.")
    whole: bool = Field(description="False: only its beginning was read (4 MiB, 40,000 rows).")
    labels: dict[str, int] = Field(description="Rows by label or tag, the most frequent first.")
    problems: list[LineProblem] = Field(description="The first bad rows, at most 20.")
    bad_rows: int = Field(description="The number of bad rows.")
    notes: list[str]
    options: dict[str, Any] = Field(
        description="Options of a training by which a file that is not usable could be read, as its contents "
        "suggest; they go with `task`. Empty: there is no such guess, or none is needed."
    )
    sample: list[dict[str, Any]] = Field(description="The first usable rows, in the form of JSON rows.")
    entities: dict[str, int] | None = Field(
        description="How often each type of entity occurs, the most frequent first; null if no tags mark "
        "entities."
    )
    sample_entities: list[list[SampleEntity]] = Field(
        description="The entities of each row of `sample`; empty if no tags mark entities."
    )
    text_columns: list[str] = Field(
        description="Columns, or fields of Label Studio's `data`, that may hold the text of a file that is "
        "not usable, where their names do not tell: one is to be named as `options.text_column`."
    )
