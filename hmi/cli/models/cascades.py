"""`hmi model cascade`: show and delete a model's cascade. `hmi profile cascade` makes one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from hmi.cli.framework.base import CommandGroup, as_json, pass_session
from hmi.cli.framework.endings import halves
from hmi.cli.framework.options import confirm, yes_option
from hmi.cli.framework.output import notes, print_done, print_fields, print_json, print_table
from hmi.cli.framework.session import CliSession, segment


@click.group(cls=CommandGroup)
def cascade() -> None:
    """Cascades: a small model answers first, and the model itself the texts that need it."""


@cascade.command()
@click.argument("name", metavar="TENANT.MODEL")
@as_json
@pass_session
def show(session: CliSession, name: str, as_json: bool) -> None:
    """Show a model's cascade, its dispatchers, and what it did to the traffic.

    Without --url it asks the server that runs on the data folder, if one does: the server knows the traffic.
    """
    with session.calls(server=True) as calls:
        found = calls.request("GET", f"/manage/models/{segment(name)}/cascade")
    print_json(found) if as_json else print_cascade(found)


def print_cascade(found: Mapping[str, Any]) -> None:
    """Print a cascade with a row for each dispatcher. found: what the server tells of it."""
    made: dict[str, Any] = found["cascade"]
    traffic: dict[str, Any] = found["traffic"] or {}
    print_fields(
        {
            "model": found["model"],
            "state": found["says"],
            "small level": _level(made["small"], made["small_accuracy"], made["small_ms"]),
            "large level": _level(found["model"], made["large_accuracy"], made["large_ms"]),
            "rows": halves(made),
            "measured": made["measured_at"],
            "traffic": _traffic_sentence(traffic)
            if traffic.get("texts")
            else "none since the server started",
        }
    )
    rows = [
        {
            **offer,
            "weight": f"{offer['weight']:.2f}",
            "ms": f"{offer['mean_ms']:.2f}",
            **{name: f"{100 * offer[name]:.1f}%" for name in ("agreement", "accuracy", "returned")},
            "fits": _standing(found, i),
        }
        for i, offer in enumerate(made["offers"])
        if i == found["chosen"] or not any(_is_better_offer(other, offer) for other in made["offers"])
    ]
    columns = {
        "agreement": "AGREEMENT",
        "ms": "MS",
        "returned": "RETURNED",
        "accuracy": "ACCURACY",
        "cut_off": "CUT-OFF",
        "slope": "SLOPE",
        "weight": "WEIGHT",
        "fits": "OBJECTIVE",
    }
    print_table(rows, columns, "no dispatcher is faster than the large level: the cascade stays off")
    if len(rows) < len(made["offers"]):
        notes.print(f"{len(made['offers']) - len(rows)} others agree less and are no faster: --json has them")


def _is_better_offer(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return True if one offer is no slower than another and agrees more, or is faster and agrees no less."""
    ours, theirs = ((offer["agreement"], -offer["mean_ms"]) for offer in (one, other))
    return ours != theirs and all(a >= b for a, b in zip(ours, theirs, strict=True))


def _traffic_sentence(traffic: Mapping[str, Any]) -> str:
    return (
        f"{traffic['texts']} texts: the small level answered {traffic['returned']} alone, and sent "
        f"{traffic['gone_on']} on; {traffic['audited']} were audited, of which {traffic['disagreed']} "
        f"disagreed; {traffic['alarms']} alarms"
    )


def _standing(found: Mapping[str, Any], index: int) -> str:
    """Say of a dispatcher whether it reaches the objective, and whether it is used."""
    if index == found["chosen"]:
        state = found["traffic"]["state"] if found["traffic"] else "tested first"
        return f"reached; {state}"
    return "reached" if index in found["fits"] else ""


@cascade.command()
@click.argument("name", metavar="TENANT.MODEL")
@yes_option
@as_json
@pass_session
def delete(session: CliSession, name: str, yes: bool, as_json: bool) -> None:
    """Remove a model's cascade. The model answers alone again."""
    path = f"/manage/models/{segment(name)}/cascade"
    with session.calls() as calls:
        confirm(f"the cascade of {name}", yes, lambda: calls.request("GET", path))
        calls.request("DELETE", path)
    print_done({"deleted": name}, f"{name} has no cascade any more", as_json)


def _level(name: str | None, accuracy: float | None, ms: float | None) -> str:
    figures = [] if accuracy is None or ms is None else [f"accuracy {accuracy:.4g}", f"{ms:.3g} ms"]
    return ", ".join([name or "a ramp of the model", *figures])
