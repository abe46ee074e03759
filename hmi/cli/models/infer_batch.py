"""`hmi infer --batch`: asks a model about each text of a file, and writes the answers for people or tools."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click

from hmi.cli.framework.options import FILE
from hmi.cli.framework.output import notes
from hmi.cli.framework.reading import reading_of
from hmi.cli.framework.session import CliSession
from hmi.cli.models.preannotations import (
    CODE_POINTS,
    FORMS,
    OFFSETS,
    UTF_16,
    Controls,
    answered_row,
    doccano_row,
    is_annotated,
    label_studio_task,
)
from hmi.client.batches import Batch, batches
from hmi.sizes import counted
from hmi.training.data.batch_texts import BatchText, read_batch
from hmi.training.data.tools.label_studio import is_least

BATCH = 64
"""A call has at most this many texts."""
SHOWN = 3
"""A note names at most this many rows."""
Wrap = Callable[..., Any]
Answered = tuple[BatchText, dict[str, Any] | None, dict[str, Any]]


@dataclass(frozen=True)
class BatchFile:
    """The file of a batch, how to read it, and how to write its answers."""

    batch: Path
    form: str | None = None
    from_name: str | None = None
    to_name: str | None = None
    offsets: str | None = None
    text_columns: tuple[str, ...] = ()
    encoding: str | None = None


_OPTIONS = (
    click.option(
        "--batch",
        type=FILE,
        help="Answer each text of this file: rows with a text, tasks of Label Studio, or one text a line.",
    ),
    click.option(
        "--form",
        type=click.Choice(FORMS),
        help="How --batch writes the answers: rows (JSON lines, the default), or as pre-annotations that "
        "Label Studio or doccano imports.",
    ),
    click.option(
        "--from-name",
        metavar="NAME",
        help="Label Studio's name of the control. Default: that of the file's annotations of the same type, "
        "else label.",
    ),
    click.option(
        "--to-name",
        metavar="NAME",
        help="Label Studio's name of the text. Default: as in the file's annotations, else text.",
    ),
    click.option(
        "--offsets",
        type=click.Choice(OFFSETS),
        help="What offsets of entities count: code points (default for Label Studio) or UTF-16 units (for "
        "doccano), in which an emoji is two. Versions of either tool differ.",
    ),
    click.option(
        "--text-column",
        "text_columns",
        multiple=True,
        metavar="NAME",
        help="The field of --batch that holds the text. Repeatable: the texts of several are joined.",
    ),
    click.option("--encoding", metavar="NAME", help="The encoding of --batch, such as windows-1252."),
)


def batch_options(function: Wrap) -> Wrap:
    """Add the options for a file of texts. The command gets them as `batch`, an `BatchFile`, or None."""

    @functools.wraps(function)
    def command(*arguments: Any, batch: Path | None, **given: Any) -> Any:
        named = {each.name: given.pop(each.name) for each in fields(BatchFile) if each.name != "batch"}
        if batch is not None:
            return function(*arguments, batch=BatchFile(batch, **named), **given)
        for name, value in named.items():
            if value not in (None, ()):
                option = "text-column" if name == "text_columns" else name.replace("_", "-")
                raise click.UsageError(f"--{option} is for --batch: name a file of texts with it")
        return function(*arguments, batch=None, **given)

    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def infer_file(session: CliSession, path: str, asked: BatchFile, parameters: dict[str, Any]) -> None:
    """Write the answers to the texts of a file to standard output, in their order: for Label Studio one JSON
    list, else JSON lines. A row without a text has no answer: it is counted in a note."""
    form = asked.form or FORMS[0]
    if asked.offsets is not None and form == "rows":
        raise click.UsageError("--offsets is for pre-annotations: choose --form label-studio or doccano")
    encoding = reading_of({"encoding": asked.encoding}).encoding
    texts = list(read_batch(asked.batch, text_columns=asked.text_columns, encoding=encoding))
    controls = Controls.of(texts, asked.from_name, asked.to_name)
    cut, listed = list[str](), form == "label-studio"
    for number, one in enumerate(_answer_texts(session, path, texts, parameters)):
        text, output, _ = one
        if output is None and not listed:
            continue
        line = json.dumps(_output_row(one, form, controls, asked.offsets), ensure_ascii=False)
        click.echo(f"{',' if number else '['}{line}" if listed else line)
        if output is not None and output.get("truncated"):
            cut.append(text.place)
    if listed:
        click.echo("]" if texts else "[]")
    tell_cut(cut, len(texts))
    for note in _notes(texts, form):
        notes.print(f"note: {note}", markup=False, soft_wrap=True)


def tell_cut(cut: Sequence[str], count: int) -> None:
    """Say which of `count` texts were too long to be read whole, as no form of annotation tools does."""
    if not cut:
        return
    more = f"; and {len(cut) - SHOWN} more" if len(cut) > SHOWN else ""
    notes.print(
        f"note: {len(cut):,} of {counted(count, 'text')} could not be read whole, and what lies beyond the "
        f"model's limit has no answer: {'; '.join(cut[:SHOWN])}{more}",
        markup=False,
        soft_wrap=True,
    )


def _notes(texts: Sequence[BatchText], form: str) -> Iterator[str]:
    empty = [text.place for text in texts if not text.text]
    if empty:
        more = f", and {len(empty) - SHOWN} more" if len(empty) > SHOWN else ""
        yield f"of {len(texts)} rows {len(empty)} without a text, so without an answer: " + (
            ", ".join(empty[:SHOWN]) + more
        )
    annotated = sum(is_annotated(text, form) for text in texts)
    if annotated:
        kept = (
            "keep their annotations beside the prediction" if form == "label-studio" else "stay as they are"
        )
        yield f"of {len(texts)} rows {annotated} annotated already: they {kept}"
    if form == "label-studio" and any(not text.task and is_least([*text.record]) for text in texts):
        yield (
            "the file is Label Studio's JSON-MIN or CSV, whose rows become new tasks: what people annotated "
            "is in their data alone. Export as JSON to keep ids and annotations"
        )


def _answer_texts(
    session: CliSession, path: str, texts: list[BatchText], parameters: dict[str, Any]
) -> Iterator[Answered]:
    """Yield each text with its output, None for one that is empty, and the whole answer that has it."""
    cut = list(batches((text.text for text in texts if text.text), BATCH))
    outputs = _outputs(
        cut, _calls(session, path, [{"inputs": b.inputs, "parameters": parameters} for b in cut])
    )
    for text in texts:
        yield (text, *next(outputs)) if text.text else (text, None, {})
    assert next(outputs, None) is None  # which also ends the calls


def _outputs(cut: list[Batch], answers: Iterator[Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for batch, answer in zip(cut, answers, strict=True):
        yield from ((output, answer) for _, output in zip(batch.inputs, answer["outputs"], strict=True))


def _calls(session: CliSession, path: str, bodies: list[Any]) -> Iterator[Any]:
    if not bodies:
        return
    if session.remote:
        with session.calls() as calls:
            for body in bodies:
                yield calls.request("POST", path, body)
        return
    with session.local() as local:
        yield from local.infer_each(path, bodies)


def _output_row(one: Answered, form: str, controls: Controls, offsets: str | None) -> dict[str, Any]:
    text, output, answer = one
    if form == "label-studio":
        version = f"{answer['model']} version {answer['version']}" if answer else ""
        return label_studio_task(text, output, version, controls, offsets or CODE_POINTS)
    assert output is not None
    return doccano_row(text, output, offsets or UTF_16) if form == "doccano" else answered_row(text, output)
