"""`hmi model tokens`: profile a model's token adaptation, and show the profile."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from hmi.cli.framework.base import Command, pass_session
from hmi.cli.framework.options import FILE, Whole, job_options
from hmi.cli.framework.output import notes, print_fields, print_json, print_table
from hmi.cli.framework.progress import finish
from hmi.cli.framework.reading import reading_options
from hmi.cli.framework.session import CliSession, segment
from hmi.cli.models.check import skipping
from hmi.cli.models.exits import bounds_of
from hmi.errors import InvalidInput


@click.command(cls=Command)
@click.argument("name", metavar="TENANT.MODEL")
@click.argument("data", type=FILE, required=False)
@click.option("--dev", type=FILE, help="Labelled rows that make the profile (default: a part of DATA).")
@click.option("--unlabelled", type=FILE, help="Further texts, by which the agreement is known better.")
@click.option("--no-prompts", "plain", is_flag=True, help="Train no prompts: only profile, which is faster.")
@click.option(
    "--skip-bad-rows", "skip", type=Whole(0), metavar="N", help="Leave out up to N bad rows of each file."
)
@reading_options
@job_options
@pass_session
def tokens(
    session: CliSession,
    name: str,
    data: Path | None,
    dev: Path | None,
    unlabelled: Path | None,
    plain: bool,
    skip: int | None,
    reading: dict[str, Any],
    detach: bool,
    as_json: bool,
) -> None:
    """Profile a model's token adaptation on the rows of DATA; without DATA, show the profile.

    Under load, similar tokens of a text may be merged, and prompts may be added where they help. The profile
    says how often answers stay the same, and what they score. It is published as a new version with the same
    weights. Rows that the model was not trained on are worth most.
    """
    path, files = f"/manage/models/{segment(name)}", {"data": data, "dev": dev, "unlabelled": unlabelled}
    given = {part: file for part, file in files.items() if file is not None}
    if data is None and (given or plain):
        raise InvalidInput(
            "data is missing: a profile is made of labelled rows, so name their file", field="data"
        )
    if data is not None:
        session.may_start_jobs()
    with session.calls() as calls:
        if data is not None:
            body = {**skipping(skip), "options": reading, "prompts": not plain}
            job = calls.request("POST", f"{path}/tokens", body, given)["job"]
            finish(session, calls, job, detach=detach, as_json=as_json)
            if detach or as_json:
                return
        found = calls.request("GET", f"{path}/tokens")
    print_json(found) if as_json else _show(found)


def _show(found: Mapping[str, Any]) -> None:
    print_fields(
        {
            "model": f"{found['model']}, version {found['version']}",
            "state": found["tokens"]["says"],
            "objective": bounds_of(found["objective"]),
        }
    )
    if not found["points"]:
        return
    rows = [
        {
            **point,
            "score": f"{point['score']:.4g}",
            "agreement": f"{100 * point['agreement']:.4g}%",
            "least": f"{100 * point['agreement_at_least']:.4g}%",
            "saved": "-" if point["saved"] is None else f"{100 * point['saved']:.3g}%",
            "allowed": "yes" if point["allowed"] else f"no: {point['why']}",
        }
        for point in found["points"]
    ]
    columns = {
        "setting": "SETTING",
        "score": (found["metric"] or "score").upper(),
        "agreement": "AGREEMENT",
        "least": "AT LEAST (95%)",
        "saved": "ROWS SAVED",
        "allowed": "ALLOWED UNDER LOAD",
    }
    print_table(rows, columns, "")
    texts = found["points"][0]["rows"]
    notes.print(f"{texts} texts, {found['labelled']} of them labelled", soft_wrap=True)
    if not found["unseen"]:
        notes.print("note: the model was trained on some of these texts, so the figures are too good")
