"""The command `bench floods`."""

from __future__ import annotations

from pathlib import Path

import click

from bench.harness.rows import FOLDER, MEASURED_HERE, shown
from hmi.cli.base import FolderCommand, as_json, pass_session
from hmi.cli.output import notes
from hmi.cli.session import Session


@click.command(cls=FolderCommand)
@click.option(
    "--only",
    multiple=True,
    metavar="FLOOD",
    help="short, long, many, exact, spaces, … Repeatable.  [default: all]",
)
@click.option(
    "--seconds",
    default=10.0,
    show_default=True,
    type=click.FloatRange(1),
    help="Duration of each measurement.",
)
@click.option(
    "--rounds",
    default=3,
    show_default=True,
    type=click.IntRange(1, 100),
    help="Measurements alone and under each flood.",
)
@click.option(
    "--beside", type=FOLDER, help="A second checkout of this project, measured in turn with this one."
)
@as_json
@pass_session
def floods(
    session: Session, only: tuple[str, ...], seconds: float, rounds: int, beside: Path | None, as_json: bool
) -> None:
    """Latency of a quiet tenant while another tenant, or a client without a key, floods the server."""
    session.not_remote(MEASURED_HERE)
    from bench.cases.floods import run as measured

    with shown("floods", as_json) as found:
        found.extend(measured.run(measured.Plan(only, seconds, rounds, beside), notes.print))
