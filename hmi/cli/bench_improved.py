"""`hmi bench improved`: the second version that a tenant gets by default, beside the first one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hmi.cli.base import FolderCommand, as_json, pass_session
from hmi.cli.bench_quality import (
    MEASURED_HERE,
    RUNS,
    models_of,
    of_a_setting,
    of_the_rows,
    setting_of,
    steps_shown,
)
from hmi.cli.output import notes, print_json, print_table
from hmi.cli.session import Session


@click.command("improved", cls=FolderCommand)
@of_a_setting
@click.option(
    "--column",
    "columns",
    multiple=True,
    help="A column to run: by_default, copies_only, … Repeatable.  [default: all]",
)
@click.option(
    "--teacher",
    "teachers",
    multiple=True,
    metavar="SOURCE",
    help="A larger source to tune teachers from: a package, a folder or a hub id. Repeatable.",
)
@of_the_rows
@as_json
@pass_session
def improved(
    session: Session, sets: Path, out: Path, seeds: int, rows: int, dev: bool, as_json: bool, **chosen: Any
) -> None:
    """Train what a tenant gets without any option, and what each part of it adds.

    --out is the folder of `hmi bench quality`, whose dedicated copies are the measure. A run is stored when
    it ends, so the same command continues an interrupted benchmark.
    """
    session.not_remote(MEASURED_HERE)
    from hmi.bench.quality import improving
    from hmi.bench.quality.cells import Budget
    from hmi.bench.quality.tasks import TRAIN
    from hmi.bench.report import result
    from hmi.model.files import write_json

    plan = improving.ImprovedPlan(
        sets,
        chosen["corpora"],
        out / RUNS,
        chosen["teachers"],
        chosen["tasks"],
        chosen["columns"],
        Budget(seeds, not dev),
        rows,
        setting_of(session, chosen).key,
    )
    improving.chosen_columns(plan)  # refuse a misspelt name now, not after hours
    with models_of(session, chosen, plots=True) as models:
        try:
            for spec, found in improving.run(plan, models, steps_shown()):
                notes.print(f"{spec['task']} {spec['arm']}, seed {spec['seed']}: dev {found['dev']:.4f}")
        finally:
            table = improving.summary(plan, models.root)
            name = "improved" if rows >= TRAIN else f"improved-{rows}"
            write_json(out / f"{name}.json", {**result("improved", []), "rows": table})
    if as_json:
        print_json(table)
    else:
        print_table(table, {key: key for row in table for key in row}, "nothing was trained")
