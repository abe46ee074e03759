"""`hmi infer`: asks a model, in this process or on a server."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import click

from hmi.cli.framework.base import Command, as_json, pass_session
from hmi.cli.framework.output import print_json, print_table
from hmi.cli.framework.session import CliSession, segment
from hmi.cli.models.infer_batch import BatchFile, batch_options, infer_file, tell_cut
from hmi.errors import HmiError, InvalidInput
from hmi.model.tenant.answer import AGGREGATIONS

SHOWN = 60
"""Characters of a text in the table of answers."""


@click.command("infer", cls=Command)
@click.argument("model", metavar="TENANT.MODEL")
@click.argument("texts", nargs=-1, metavar="TEXT…")
@click.option("--pair", multiple=True, help="The second text of a pair. Give it once for each TEXT.")
@click.option(
    "--tokens", is_flag=True, help="Split each TEXT at spaces, and show a tagging model's tag of each word."
)
@click.option(
    "--aggregation",
    type=click.Choice(AGGREGATIONS),
    help="How a tagging model's words become entities, as in transformers' pipelines (default simple).",
)
@click.option("--exact", is_flag=True, help="Compute the lower layers in full, without the PLOT.")
@click.option("--scores", is_flag=True, help="Show the score of every label.")
@click.option(
    "--provenance",
    is_flag=True,
    help="Include the origin of the answer: PLOT hits and versions (with --json).",
)
@click.option("--words", is_flag=True, help="Show which n-grams of the PLOT answered each word.")
@click.option(
    "--calibrated",
    is_flag=True,
    help="Show calibrated scores, as the page does: of answers with the score 0.9, about nine in ten are "
    "right. Without it scores are plain, and may differ from the page's.",
)
@click.option("--full", is_flag=True, help="Insist on the full model: no early exit, no cascade.")
@click.option(
    "--deadline",
    type=click.FloatRange(min=0, min_open=True),
    metavar="MS",
    help="Drop the work if no answer is there after this many milliseconds.",
)
@click.option(
    "--utility",
    type=click.FloatRange(0, 1, min_open=True),
    help="The value of an answer in time, above 0, at most 1 (default 1): under load higher sums go first.",
)
@batch_options
@click.option("--ids", is_flag=True, help="Show the id and index of each answer, for 'hmi model feedback'.")
@as_json
@pass_session
def infer(
    session: CliSession,
    model: str,
    texts: tuple[str, ...],
    pair: tuple[str, ...],
    tokens: bool,
    aggregation: str | None,
    exact: bool,
    scores: bool,
    provenance: bool,
    words: bool,
    calibrated: bool,
    full: bool,
    deadline: float | None,
    utility: float | None,
    batch: BatchFile | None,
    ids: bool,
    as_json: bool,
) -> None:
    """Ask TENANT.MODEL about each TEXT, or about each line of standard input if no TEXT is given.

    With --batch it answers a file, in the form of your rows or of an annotation tool.
    """
    lines = () if batch else texts or tuple(line.rstrip("\n") for line in sys.stdin if line.strip())
    if pair and len(pair) != len(lines):
        raise click.UsageError("give --pair once for each TEXT")
    extras = {"scores": scores, "provenance": provenance, "words": words}
    wanted = [name for name, on in extras.items() if on]
    if ids and not session.remote:
        raise InvalidInput("ids are for feedback to the server that answers: name it with --url")
    parameters: dict[str, Any] = {"exact": exact, "calibrated": calibrated, "early": not full}
    parameters |= {"return": wanted, "deadline_ms": deadline}
    optional = {"utility": utility, "aggregation": aggregation}
    parameters |= {name: value for name, value in optional.items() if value is not None}
    path = f"/infer/{segment(model)}"
    if batch is not None:
        if texts or pair or tokens or ids or as_json:
            raise click.UsageError("--batch goes without TEXT, --pair, --tokens, --ids and --json")
        with _hinted(model):
            infer_file(session, path, batch, parameters)
        return
    body = {"inputs": _inputs(lines, pair, tokens), "parameters": parameters}
    if not lines:
        raise click.UsageError("give a TEXT, or pipe some in, one a line")
    with _hinted(model, pair=bool(pair), tokens=tokens):
        answer = _post_input(session, path, body)
    print_json(answer) if as_json else _show(lines, answer, ids=ids)


def _post_input(session: CliSession, path: str, body: Any) -> Any:
    if session.remote:
        with session.calls() as calls:
            return calls.request("POST", path, body)
    with session.local() as local:
        return local.infer(path, body)


@contextmanager
def _hinted(model: str, *, pair: bool = False, tokens: bool = False) -> Iterator[None]:
    """Context manager: an error in the block says what to do on the command line."""
    try:
        yield
    except HmiError as error:
        error.message += _hint(error.message, model, pair=pair, tokens=tokens)
        raise


def _hint(message: str, model: str, *, pair: bool, tokens: bool) -> str:
    """Return a hint to add to an error: the command for a model that writes, the option that gives what the
    model needs, or the one to remove."""
    if "writes text: POST /generate/" in message:
        return f", or hmi generate {model}"
    wanted = message.partition(" model: give ")[2]
    if wanted.startswith("text and text_pair"):
        return "" if pair else "; --pair gives the second text of each TEXT"
    return f"; leave {'--tokens' if tokens else '--pair'} out" if wanted and (tokens or pair) else ""


def _inputs(lines: tuple[str, ...], pair: tuple[str, ...], tokens: bool) -> list[Any]:
    if tokens:
        return [{"tokens": line.split()} for line in lines]
    if pair:
        return [{"text": a, "text_pair": b} for a, b in zip(lines, pair, strict=True)]
    return list(lines)


def _show(lines: tuple[str, ...], answer: dict[str, Any], *, ids: bool) -> None:
    rows, said = [], list(zip(lines, answer["outputs"], strict=True))
    for i, (line, output) in enumerate(said):
        named = {"id": answer["id"] if ids else None, "index": i if ids else None}
        doubt = _doubt(output.get("known"))
        rows.append({**output, **named, "text": line[:SHOWN], "label": _answer_line(output), "doubt": doubt})
    columns = {"text": "TEXT", "label": "ANSWER", "score": "SCORE", "scores": "SCORES", "doubt": "KNOWN"}
    columns |= {"id": "ID", "index": "INDEX"}
    shown = {name: heading for name, heading in columns.items() if any(row[name] is not None for row in rows)}
    if all(output.get("known") for output in answer["outputs"]):
        shown.pop("doubt", None)
    print_table(rows, shown, "no texts: give some, or pipe them in")
    tell_cut([f"{line[:SHOWN]}…" for line, output in said if output.get("truncated")], len(lines))
    for output in answer["outputs"]:
        if output.get("words") is not None:
            click.echo(f"words: {_words(output['words'])}")


def _doubt(known: bool | None) -> str | None:
    """Return the cell that says whether the model knows a text; None for a model without a threshold."""
    return None if known is None else "yes" if known else "does not know"


def _words(words: Sequence[dict[str, Any]]) -> str:
    """Return words in groups of neighbours that the same n-grams answered, as `[trigram] oil prices`."""
    groups = groupby(words, lambda word: word["order"] or "not read")
    return " ".join(f"[{order}] {' '.join(word['text'] for word in some)}" for order, some in groups)


def _answer_line(output: dict[str, Any]) -> str:
    """Return an answer of any task as one line."""
    entities = output.get("entities")  # a server of an earlier version has none
    if entities is not None:
        return "; ".join(f"{e['label']}: {e['text']} ({e['score']:.2f})" for e in entities) or "(none)"
    if output["tags"] is not None:
        return " ".join(output["tags"])
    if output["labels"] is not None:
        return ", ".join(f"{given['label']} {given['score']:.2f}" for given in output["labels"]) or "(none)"
    if output["value"] is not None:
        return f"{output['value']:.4g}"
    if output["embedding"] is not None:
        first = " ".join(f"{x:.3f}" for x in output["embedding"][:4])
        return f"{first} … ({len(output['embedding'])} numbers: see --json)"
    return str(output["label"])
