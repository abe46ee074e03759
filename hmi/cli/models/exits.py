"""`hmi model objective`, `exits`, `feedback`: answers from less than the full model; `depth`: its layers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import click

from hmi.cli.framework.base import Command, as_json, pass_session
from hmi.cli.framework.options import FILE
from hmi.cli.framework.output import notes, print_done, print_fields, print_json, print_table
from hmi.cli.framework.session import CliSession, segment
from hmi.core import Depth, Task
from hmi.errors import HmiError, InvalidData, InvalidInput

A_CALL = 1000
"""Labels in one call of feedback."""
FIELDS: dict[str, str] = {"multilabel": "labels", "regression": "value", "tagging": "tags"}
"""The column of a label, by task, if it is not `label`."""
PERCENT = "{:.4g}%".format


@click.command(cls=Command)
@click.argument("name", metavar="TENANT.MODEL")
@click.option(
    "--agreement", type=float, help="The fraction of answers that must equal the full model's, such as 0.99."
)
@click.option(
    "--deadline-ms",
    type=float,
    help="The mean time that an answer may take, for the choice among a cascade's dispatchers.",
)
@click.option(
    "--agreement-under-load",
    type=float,
    help="The fraction of answers that must equal the full model's while the server is loaded, such as 0.97.",
)
@click.option("--none", "none", is_flag=True, help="Remove all bounds: the full model answers every text.")
@as_json
@pass_session
def objective(session: CliSession, name: str, none: bool, as_json: bool, **bounds: float | None) -> None:
    """Show or set what answers of a model must keep to.

    With an agreement, texts may leave the model early, or a smaller model may answer them, once audits of the
    tenant's own texts have shown that answers stay equal so often. With an agreement under load, similar
    tokens of texts may be merged while the server is loaded. The model's next text obeys it.
    """
    given = {field: value for field, value in bounds.items() if value is not None}
    if none and given:
        raise click.UsageError("give --none, or the bounds, not both")
    path = f"/manage/models/{segment(name)}"
    with session.calls() as calls:
        if none or given:
            found = calls.request("PATCH", path, {"objective": None if none else given})
        else:
            found = calls.request("GET", path)
    print_done(
        {
            "model": name,
            "objective": found["objective"],
            "exits": found["exits"],
            "tokens": found.get("tokens"),  # a server of an earlier version has none
        },
        f"{name}: {bounds_of(found['objective'])}",
        as_json,
    )
    if as_json:
        return
    if found["exits"] is not None:
        notes.print(found["exits"]["says"], markup=False, soft_wrap=True)
    if found["objective"].get("agreement_under_load") is not None:
        notes.print(found["tokens"]["says"], markup=False, soft_wrap=True)


@click.command(cls=Command)
@click.argument("name", metavar="TENANT.MODEL")
@click.argument("layers", metavar="[fast|full|auto]", type=click.Choice(get_args(Depth)), required=False)
@as_json
@pass_session
def depth(session: CliSession, name: str, layers: str | None, as_json: bool) -> None:
    """Show or set the layers that a model's next versions compute.

    fast: the upper half, over what the PLOT looks up. full: all of them, with a module in each, which takes a
    text about twice the time. auto: an update keeps the layers of the version that answers. Versions stay as
    they are: 'hmi model update' trains one of another depth, and 'hmi model rollback' returns to one.
    """
    path = f"/manage/models/{segment(name)}"
    with session.calls() as calls:
        found = calls.request(*(("GET", path) if layers is None else ("PATCH", path, {"depth": layers})))
    shown = {"model": name, "depth": found["depth"], "root": found["root"], "domain": found["domain"]}
    says = f"{name}: {found['depth']}; version {found['current']} stands on root {found['root']}"
    print_done(shown, says, as_json)


@click.command(cls=Command)
@click.argument("name", metavar="TENANT.MODEL")
@as_json
@pass_session
def exits(session: CliSession, name: str, as_json: bool) -> None:
    """Show how far a model's early exits are, and what they saved.

    Without --url it asks the server that runs on the data folder. The counts begin with the version that
    answers, and go on after a clean stop of the server.
    """
    found = _ask(session, "GET", f"/manage/models/{segment(name)}/exits")
    if as_json:
        print_json(found)
        return
    report = found["report"]
    fields = {
        "model": f"{found['model']}, version {found['version']}",
        "state": found["says"],
        "objective": bounds_of(found["objective"]),
    }
    print_fields(fields if report is None else {**fields, **_traffic_lines(report, found["state"])})
    if report is not None:
        rows = [
            {
                **site,
                "left": report["left"].get(str(site["site"]), 0),
                "checked": report["checked"].get(str(site["site"]), 0),
                "avoids": f"{100 * site['avoids']:.0f}% of the layers' time",
            }
            for site in report["sites"]
        ]
        if rows:
            heads = {"site": "RAMP BEFORE LAYER", "threshold": "THRESHOLD", "left": "LEFT EARLY"}
            print_table(rows, {**heads, "checked": "OF THEM AUDITED", "avoids": "EACH IS SOONER BY"}, "")


@click.command(cls=Command)
@click.argument("name", metavar="TENANT.MODEL")
@click.argument("file", type=FILE)
@as_json
@pass_session
def feedback(session: CliSession, name: str, file: Path, as_json: bool) -> None:
    """Send labels that became known after the answers.

    FILE is JSON or CSV with the columns id, index (0 if left out) and label, labels, value or tags, as the
    task has it. 'hmi infer --ids' and each answer over HTTP have the id; index is the input's place in the
    call. Without --url the labels go to the server that runs on the data folder.
    """
    path = f"/manage/models/{segment(name)}"
    items = list(_items(file, _ask(session, "GET", path)["task"]))
    taken = unknown = 0
    for first in range(0, len(items), A_CALL):
        try:
            body = {"items": items[first : first + A_CALL]}
            done = _ask(session, "POST", f"{path}/feedback", body)
        except HmiError as error:
            if len(items) > A_CALL:
                error.message += f" (items of {file.name} from row {first + 1} on; {taken} taken)"
            raise
        taken, unknown = taken + done["taken"], unknown + done["unknown"]
    told = f"{taken} taken, {unknown} unknown"
    why = ": answered too long ago, without early exits, or labelled already" if unknown else ""
    print_done({"taken": taken, "unknown": unknown}, told + why, as_json)


def _ask(session: CliSession, method: str, path: str, body: Any = None) -> Any:
    """Make a call to the server that answers: the named one, or the one on the data folder."""
    from hmi.cli.top.top import server_of

    return session.client(server_of(session), patience_s=5.0).request(method, path, body)


def bounds_of(objective: dict[str, Any]) -> str:
    """Return an objective in words."""
    agreement, deadline = objective["agreement"], objective["deadline_ms"]
    under_load = objective.get("agreement_under_load")  # a server of an earlier version has none
    if agreement is None and under_load is None:
        said = "the full model answers every text"
    elif agreement is None:
        said = "the full model answers every text while the server is not loaded"
    else:
        said = f"at least {PERCENT(100 * agreement)} of answers equal the full model's"
    if under_load is not None:
        said += f"; under load at least {PERCENT(100 * under_load)} of answers equal the full model's"
    return said if deadline is None else f"{said}; {deadline:g} ms in the mean"


def _traffic_lines(report: dict[str, Any], state: str) -> dict[str, str]:
    """The lines about a report."""
    left = sum(report["left"].values())
    now = f" ({PERCENT(100 * report['audit_share'])} of texts at present)" if state == "open" else ""
    audits = f"{report['audits']}{now}"
    if report["audits"]:
        least = PERCENT(round(100 * report["agreement_at_least"], 2))
        audits += f", {report['disagreed']} disagreed: agreement at least {least} (95%)"
    names = "left_share", "sooner", "saved", "avoided", "cost"
    share, sooner, saved, avoided, cost = (PERCENT(round(100 * report[name], 1)) for name in names)
    each = "" if report["layers_ms"] is None else f" ({report['layers_ms']:.3g} ms a text)"
    off = f"; {report['skipped']} came while exits were off, and are in no time" if report["skipped"] else ""
    return {
        "texts": f"{report['texts']}, of which {left} left early ({share}){off}",
        "sooner": f"{sooner} of the time that all upper layers take{each}, in the mean over all these texts",
        "saved": f"{saved} of this time on the processor: {avoided} not run, less {cost} taken by exits",
        "audits": audits,
        "late labels": f"early {_right(report['early'])}; full {_right(report['full'])}",
        "alarms": str(report["alarms"]),
    }


def _right(labelled: dict[str, Any]) -> str:
    if not labelled["seen"]:
        return "none"
    low, high = (PERCENT(round(100 * labelled[name], 1)) for name in ("at_least", "at_most"))
    return f"{labelled['right']} of {labelled['seen']} right ({low} to {high})"


def _items(file: Path, task: Task) -> Iterator[dict[str, Any]]:
    """The items of a file of late labels. Raises InvalidInput, InvalidData with the line."""
    from hmi.training.data.meaning.fields import answer_of
    from hmi.training.data.tables import read_table
    from hmi.training.data.text_files import TextFile

    column = FIELDS.get(task, "label")
    table = read_table(TextFile(file, "file"), lambda names: "id" in names, conll="no")
    lacks = next((name for name in ("id", column) if name not in table.columns), None)
    if lacks is not None:
        raise InvalidInput(
            f"file has no column `{lacks}`, but {', '.join(table.columns) or 'none'}: each row needs id and "
            f"{column}, and index unless it is 0",
            field="file",
        )
    for record in table.records:
        try:
            if record.problem:
                raise ValueError(record.problem)
            given, index = record.values, record.values.get("index") or 0
            label = given.get(column)
            yield {
                "id": str(given["id"]),
                "index": int(index),
                "label": answer_of({column: label, "tokens": label}, task),
            }
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidData(f"file, {record.place}: {error}", field="file", line=record.line) from error
