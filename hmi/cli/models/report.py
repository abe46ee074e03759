"""`hmi model report`: the held-out report of a model's version, as text, JSON or a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import click

from hmi.cli.framework.base import Command, as_json, pass_session
from hmi.cli.framework.endings import compared
from hmi.cli.framework.options import Whole
from hmi.cli.framework.output import fits, notes, print_fields, print_json, print_table, size
from hmi.cli.framework.session import CliSession, segment
from hmi.errors import InvalidInput, NotFound
from hmi.model.files import write_bytes
from hmi.training.tasks.headline import headline_name

_SIDE, _EDGE = 320, 50


def reliability_svg(title: str, calibration: Mapping[str, Any]) -> str:
    """Return the reliability plot of a version's metrics["calibration"].

    For each probability p it shows the share of answers given with p that were right.
    A dot's area grows with its share of the answers. On the diagonal the probabilities are exact.
    """
    bins = calibration["bins"]
    total = sum(b["rows"] for b in bins)
    size = _SIDE + 2 * _EDGE
    points = [(_x(b["confidence"]), _y(b["right"]), b) for b in bins]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
    dots = [
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{3 + 14 * (b["rows"] / total) ** 0.5:.1f}" fill="#1f77b4" '
        f'fill-opacity="0.6"><title>{b["rows"]} answers: {b["confidence"]:.2f} given, {b["right"]:.2f} '
        "right</title>"
        "</circle>"
        for x, y, b in points
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size} {size}" width="{size}" '
            f'height="{size}" '
            'font-family="sans-serif" font-size="12">',
            f'<rect width="{size}" height="{size}" fill="white"/>',
            f'<text x="{_EDGE}" y="20" font-size="14">{escape(title)}</text>',
            f'<text x="{_EDGE}" y="38">expected calibration error {calibration["ece"]:.3f}, {total} '
            "answers</text>",
            *(_grid(tick / 5) for tick in range(6)),
            f'<line x1="{_x(0)}" y1="{_y(0)}" x2="{_x(1)}" y2="{_y(1)}" stroke="#999" stroke-dasharray="4"/>',
            f'<polyline points="{line}" fill="none" stroke="#1f77b4"/>',
            *dots,
            f'<text x="{size / 2}" y="{size - 8}" text-anchor="middle">probability given</text>',
            f'<text transform="translate(14 {size / 2}) rotate(-90)" text-anchor="middle">share right</text>',
            "</svg>\n",
        ]
    )


def _grid(at: float) -> str:
    """Return a grid line and a label for each axis at the probability `at`."""
    x, y = _x(at), _y(at)
    return (
        f'<path d="M{x} {_y(0)}V{_y(1)}M{_x(0)} {y}H{_x(1)}" stroke="#ddd"/>'
        f'<text x="{x}" y="{_y(0) + 16}" text-anchor="middle">{at:.1f}</text>'
        f'<text x="{_x(0) - 6}" y="{y + 4}" text-anchor="end">{at:.1f}</text>'
    )


def _x(share: float) -> float:
    return round(_EDGE + _SIDE * share, 1)


def _y(share: float) -> float:
    return round(_EDGE + _SIDE * (1 - share), 1)


MOST_SHOWN = 20
"""Kinds of mistakes that the report lists, if the confusion matrix does not fit."""


@click.command("report", cls=Command)
@click.argument("name", metavar="TENANT.MODEL")
@click.option("--version", type=Whole(1), help="The version to report (default: the live one).")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the reliability plot to this file, as SVG.",
)
@as_json
@pass_session
def report(session: CliSession, name: str, version: int | None, plot: Path | None, as_json: bool) -> None:
    """Show a model's scores on held-out rows: each label's scores, the confusion and the calibration."""
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
    """Return the metrics that are single values, for tables with a line for each version."""
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
        print_fields(_calibration(metrics["calibration"]))
    if metrics.get("known"):
        print_fields(_novelty_fields(metrics["known"]))
    if metrics.get("ramps"):
        _show_ramps(metrics["ramps"])
    for warning in metrics.get("warnings", ()):
        notes.print(f"note: {warning}")


def _calibration(found: Mapping[str, Any]) -> dict[str, Any]:
    """The calibration error, and if there is a temperature, the error with it."""
    shown = {"expected calibration error": found["ece"]}
    if "temperature" in found:
        shown |= {"temperature": found["temperature"], "error with it": found["ece_calibrated"]}
    if "entities" in found:
        of = found["entities"]
        shown |= {"entities' error": of["ece"], "entities' error, calibrated": of["ece_calibrated"]}
    return shown


def _novelty_fields(found: Mapping[str, Any]) -> dict[str, Any]:
    """The threshold below which the model says that it does not know."""
    return {
        "does not know texts below the similarity": found["threshold"],
        "which this share of its own texts reach": found["share"],
        "known from rows": found["rows"],
    }


def _show_ramps(found: Mapping[str, Any]) -> None:
    """Print how good each ramp is on the held-out texts."""
    rows = [{**site, "bytes": size(site["bytes"])} for site in found["sites"]]
    columns = {
        "site": "RAMP BEFORE LAYER",
        "agreement": "ANSWERS AS THE MODEL",
        "may_leave": "MAY LEAVE AT 1% OTHERS",
        "bytes": "SIZE",
    }
    print_table(rows, columns, "")
    print_fields({"texts of these figures": found["texts"], "texts fitted to": found["fitted_to"]})
    if not found.get("unseen", True):
        notes.print("note: the model was trained on some of these texts, so the figures are too good")


def _show_confusion(names: Sequence[str], rows: Sequence[Sequence[int]]) -> None:
    """Print the confusion matrix, or, if it is too wide, the most frequent mistakes."""
    table = [
        {"gold": name, **{str(i): n for i, n in enumerate(row)}}
        for name, row in zip(names, rows, strict=True)
    ]
    columns = {"gold": "LABEL \\ ANSWER", **{str(i): name for i, name in enumerate(names)}}
    if fits(table, columns):
        print_table(table, columns, "")
        return
    cells = (
        (n, is_, got) for is_, row in zip(names, rows, strict=True) for got, n in zip(names, row, strict=True)
    )
    wrong = sorted(((n, is_, got) for n, is_, got in cells if n and is_ != got), key=lambda cell: -cell[0])
    shown = [{"gold": is_, "got": got, "rows": n} for n, is_, got in wrong[:MOST_SHOWN]]
    print_table(shown, {"gold": "LABEL", "got": "ANSWER", "rows": "ROWS"}, "every answer was right")
    if len(wrong) > MOST_SHOWN:
        notes.print(f"and {len(wrong) - MOST_SHOWN} rarer mistakes: --json lists all")


def _write_plot(path: Path, title: str, metrics: Mapping[str, Any]) -> None:
    if "calibration" not in metrics:
        raise InvalidInput("this version has no calibration: its task gives no probabilities", field="plot")
    write_bytes(path, reliability_svg(title, metrics["calibration"]).encode())
    notes.print(f"wrote the plot to {path}")
