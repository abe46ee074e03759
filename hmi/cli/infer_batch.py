"""`hmi infer --batch`: asks a model about each text of a file, and writes the answers for people or tools."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from hmi.cli.output import notes
from hmi.cli.preannotations import answered_row, doccano_row, label_studio_task
from hmi.cli.session import Session
from hmi.client.batches import Batch, batches
from hmi.sizes import counted
from hmi.training.data.batch_texts import BatchText, read_batch

BATCH = 64
"""A call has at most this many texts."""
SHOWN = 3
"""A note names at most this many texts."""


@dataclass(frozen=True)
class As:
    """How answers are written: one of `preannotations.FORMS`, and the control and the text of Label Studio's
    labelling configuration."""

    form: str
    from_name: str
    to_name: str


def infer_file(
    session: Session,
    path: str,
    file: Path,
    text_columns: Sequence[str],
    parameters: dict[str, Any],
    written: As,
) -> None:
    """Write the answers to the texts of a file to standard output, in their order.

    The form label-studio is one JSON list, the others are JSON lines. text_columns: as in `read_batch`.
    """
    texts = list(read_batch(file, text_columns=text_columns))
    cut, listed = list[str](), written.form == "label-studio"
    for number, (text, output, answer) in enumerate(_answered(session, path, texts, parameters)):
        line = json.dumps(_written(text, output, answer, written), ensure_ascii=False)
        click.echo(f"{',' if number else '['}{line}" if listed else line)
        if output.get("truncated"):
            cut.append(text.place or f"line {text.line}")
    if listed:
        click.echo("]" if texts else "[]")
    tell_cut(cut, len(texts))


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


def _answered(
    session: Session, path: str, texts: list[BatchText], parameters: dict[str, Any]
) -> Iterator[tuple[BatchText, dict[str, Any], dict[str, Any]]]:
    """Yield each text with its output and the whole answer that has it."""
    cut = list(batches((text.text for text in texts), BATCH))
    bodies = [{"inputs": batch.inputs, "parameters": parameters} for batch in cut]
    for batch, answer in zip(cut, _calls(session, path, bodies), strict=True):
        for text, output in zip(_of(batch, texts), answer["outputs"], strict=True):
            yield text, output, answer


def _of(batch: Batch, texts: list[BatchText]) -> list[BatchText]:
    return texts[batch.start : batch.start + len(batch.inputs)]


def _calls(session: Session, path: str, bodies: list[Any]) -> Iterator[Any]:
    if session.remote:
        with session.calls() as calls:
            for body in bodies:
                yield calls.request("POST", path, body)
        return
    with session.local() as local:
        yield from local.infer_each(path, bodies)


def _written(text: BatchText, output: dict[str, Any], answer: dict[str, Any], written: As) -> dict[str, Any]:
    if written.form == "label-studio":
        version = f"{answer['model']} version {answer['version']}"
        return label_studio_task(text, output, version, written.from_name, written.to_name)
    return doccano_row(text, output) if written.form == "doccano" else answered_row(text, output)
