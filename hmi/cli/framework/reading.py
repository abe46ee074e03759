"""Options of commands that say how to read a file of rows, and the way back from a guess to such options."""

from __future__ import annotations

import csv
import functools
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from hmi.jobs.options import Reading, checked_options

Wrap = Callable[..., Any]

_OPTIONS = (
    click.option(
        "--text-column",
        multiple=True,
        metavar="NAME",
        help="The column that holds the text. Repeatable: the texts of several columns are joined.",
    ),
    click.option("--text-pair-column", metavar="NAME", help="The column that holds a pair's second text."),
    click.option(
        "--label-column",
        metavar="NAME",
        help="The column that holds the answer: label, labels, value, tags or spans. Of several controls of "
        "Label Studio, the one to read.",
    ),
    click.option(
        "--labels-columns",
        metavar="A,B,…",
        help="For multilabel: the columns that each stand for one label, and hold 1 or 0.",
    ),
    click.option(
        "--labels",
        metavar="A,B,…",
        help="Names of labels or tags that are integers in the file: of 0, 1, …, or as 1=A,2=B.",
    ),
    click.option(
        "--no-header",
        is_flag=True,
        help="The first line of a CSV file is a row. Its columns are named 1, 2, and so on.",
    ),
    click.option("--encoding", metavar="NAME", help="The files' encoding, such as windows-1252."),
)


def reading_options(function: Wrap) -> Wrap:
    """Add the options of a `Reading`. The command gets them as `reading`, with those that were given only."""

    @functools.wraps(function)
    def command(*arguments: Any, text_column: tuple[str, ...], no_header: bool, **given: Any) -> Any:
        named = {name: given.pop(name) for name in ("text_pair_column", "label_column", "encoding")}
        split = {name: given.pop(name) for name in ("labels_columns", "labels")}
        reading: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
        reading |= {
            name: [*map(str.strip, next(csv.reader([value], skipinitialspace=True)))]
            for name, value in split.items()
            if value
        }
        if text_column:
            reading["text_column"] = text_column[0] if len(text_column) == 1 else list(text_column)
        if no_header:
            reading["header"] = False
        return function(*arguments, reading=reading, **given)

    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def reading_of(options: Mapping[str, Any]) -> Reading:
    """The reading among the options of a job. Raises InvalidInput, which names the first that is wrong."""
    return checked_options(Reading, {name: options[name] for name in Reading.model_fields if name in options})


def as_arguments(reading: Mapping[str, Any]) -> str:
    """A reading as the options of a command, with a space before each; "" for none."""
    words = []
    given = ((name, reading[name]) for name in Reading.model_fields if name in reading)
    for name, value in given:
        option = f"--{name.replace('_', '-')}"
        if name == "header":
            words += [] if value else ["--no-header"]
        elif name == "text_column" and not isinstance(value, str):
            words += [f"{option} {shlex.quote(column)}" for column in value]
        else:
            words.append(f"{option} {shlex.quote(value if isinstance(value, str) else _listed(value))}")
    return "".join(f" {word}" for word in words)


def _listed(names: list[str]) -> str:
    return ",".join('"{}"'.format(n.replace('"', '""')) if set(n) & {",", '"'} else n for n in names)


def next_step(file: Path, task: str | None, reading: Mapping[str, Any]) -> str:
    """The command that trains a model of the rows in `file`. One that writes needs no domain beside its
    root."""
    domain = "ROOT" if task == "generation" else "ROOT/BRANCH"
    return (
        f"hmi model create TENANT.MODEL {shlex.quote(str(file))} --domain {domain} --task {task}"
        f"{as_arguments(reading)}"
    )
