"""`hmi infer --batch`: asks a model about each text of a file, and writes the answers for people or tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from hmi.cli.preannotations import answered_row, doccano_row, label_studio_task
from hmi.cli.session import Session
from hmi.client.batches import Batch, batches
from hmi.training.data.batch_texts import BatchText, read_batch

BATCH = 64
"""A call has at most this many texts."""


def infer_file(
    session: Session, path: str, file: Path, parameters: dict[str, Any], form: str, names: tuple[str, str]
) -> None:
    """Write the answers to the texts of a file to standard output, in their order.

    form: one of `preannotations.FORMS`; label-studio is one JSON list, the others are JSON lines. names: the
    control and the text of Label Studio's labelling configuration.
    """
    texts = list(read_batch(file))
    written = (
        json.dumps(_written(text, output, answer, form, names), ensure_ascii=False)
        for text, output, answer in _answered(session, path, texts, parameters)
    )
    if form != "label-studio":
        for line in written:
            click.echo(line)
        return
    for number, line in enumerate(written):
        click.echo(f"{',' if number else '['}{line}")
    click.echo("]" if texts else "[]")


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


def _written(
    text: BatchText, output: dict[str, Any], answer: dict[str, Any], form: str, names: tuple[str, str]
) -> dict[str, Any]:
    if form == "label-studio":
        return label_studio_task(text, output, f"{answer['model']} version {answer['version']}", *names)
    return doccano_row(text, output) if form == "doccano" else answered_row(text, output)
