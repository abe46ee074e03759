"""`hmi model report`: the held-out report of a model's version, for reading and as a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from hmi.cli.base import Command, as_json, pass_session
from hmi.cli.chart import reliability_svg
from hmi.cli.endings import compared
from hmi.cli.options import Whole
from hmi.cli.output import fits, notes, print_fields, print_json, print_table
from hmi.cli.session import Session, segment
from hmi.errors import InvalidInput, NotFound
from hmi.model.files import write_bytes
from hmi.training.headline import headline_name

MOST_SHOWN = 20


@click.command("report", cls=Command)
@click.argument("name", metavar="TENANT.MODEL")
@click.option("--version", type=Whole(1), help="Default: the one that answers.")
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), help="Write the reliability plot here, as SVG."
)
@as_json
@pass_session
def report(session: Session, name: str, version: int | None, plot: Path | None, as_json: bool) -> None:
    """How the model did on held-out rows: scores of each label, what is taken for what, and calibration."""
    with session.calls() as calls:
        found = calls.request("GET", f"/manage/models/{segment(name)}")
    wanted = found["current"] if version is None else version
    metrics = next((v["metrics"] for v in found["versions"] if v["version"] == wanted), None)
    if metrics is None:
        have = ", ".join(str(v["version"]) for v in found["versions"])
        raise NotFound(f"model {name} has no version {wanted}: choose one of {have}", field="version")
    if plot is not None:
        _write_plot(plot, f"{name}, version {wanted}", metrics)
    print_json(metrics) if as_json else _show(metrics)


def brief(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The single figures among the metrics, for tables that have a line for each version."""
    return {name: value for name, value in metrics.items() if not isinstance(value, Mapping | list | tuple)}


def _show(metrics: Mapping[str, Any]) -> None:
    live = {"compared": compared(metrics["live"], headline_name(metrics))} if metrics.get("live") else {}
    print_fields({**brief(metrics), **live})
    labels = [{"label": label, **scores} for label, scores in metrics.get("per_label", {}).items()]
    if labels:
        columns = {
            "label": "LABEL",
            "f1": "F1",
            "precision": "PRECISION",
            "recall": "RECALL",
            "support": "ROWS",
        }
        print_table(labels, columns, "")
    if "confusion" in metrics:
        _show_confusion(metrics["confusion"]["labels"], metrics["confusion"]["rows"])
    if "calibration" in metrics:
        columns = {"rows": "ANSWERS", "confidence": "PROBABILITY GIVEN", "right": "SHARE RIGHT"}
        print_table(metrics["calibration"]["bins"], columns, "")
        print_fields({"expected calibration error": metrics["calibration"]["ece"]})
    for warning in metrics.get("warnings", ()):
        notes.print(f"note: {warning}")


def _show_confusion(names: Sequence[str], rows: Sequence[Sequence[int]]) -> None:
    """Each label against each where that fits in a line, else what was mistaken, the most frequent first."""
    table = [
        {"gold": name, **{str(i): n for i, n in enumerate(row)}}
        for name, row in zip(names, rows, strict=True)
    ]
    columns = {"gold": "IS \\ TAKEN FOR", **{str(i): name for i, name in enumerate(names)}}
    if fits(table, columns):
        print_table(table, columns, "")
        return
    cells = (
        (n, is_, got) for is_, row in zip(names, rows, strict=True) for got, n in zip(names, row, strict=True)
    )
    wrong = sorted(((n, is_, got) for n, is_, got in cells if n and is_ != got), key=lambda cell: -cell[0])
    told = [{"gold": is_, "got": got, "rows": n} for n, is_, got in wrong[:MOST_SHOWN]]
    print_table(told, {"gold": "IS", "got": "TAKEN FOR", "rows": "ROWS"}, "no row was taken for another")
    if len(wrong) > MOST_SHOWN:
        notes.print(f"and {len(wrong) - MOST_SHOWN} rarer mistakes: --json has all")


def _write_plot(path: Path, title: str, metrics: Mapping[str, Any]) -> None:
    if "calibration" not in metrics:
        raise InvalidInput("this version has no calibration: its task gives no probabilities", field="plot")
    write_bytes(path, reliability_svg(title, metrics["calibration"]).encode())
    notes.print(f"the plot is in {path}")
