"""`bench improved`: the second version that a tenant gets by default, beside the first one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from bench.cases.quality.command import RUNS, SMALL, of_a_setting, of_the_rows, setting_of, steps_shown
from bench.harness.rows import MEASURED_HERE, quick
from hmi.cli.framework.base import FolderCommand, as_json, pass_session
from hmi.cli.framework.options import Number
from hmi.cli.framework.output import notes, print_json, print_table
from hmi.cli.framework.progress import job_bar
from hmi.cli.framework.session import CliSession


@click.command("improved", cls=FolderCommand)
@of_a_setting
@quick(**SMALL, cells=["sst2:20:0:copies_only"], dev=True)
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
@click.option(
    "--cell",
    "cells",
    multiple=True,
    metavar="SET:ROWS:SEED:COLUMN[:DRAW]",
    help="Run this cell, not all that other options select. Repeatable. DRAW 1, 2, … takes other rows.",
)
@click.option(
    "--cpu-hours",
    type=Number(0.001, 10_000),
    help="End after this much CPU time of all cells together.  [default: no end]",
)
@click.option(
    "--at-once",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Work on this many sets at a time, each on one core.",
)
@of_the_rows
@as_json
@pass_session
def improved(
    session: CliSession, sets: Path, out: Path, seeds: int, rows: int, dev: bool, as_json: bool, **chosen: Any
) -> None:
    """Train what a tenant gets without any option, and what each part of it adds.

    --out is the folder of `bench quality`, whose dedicated copies are the measure. A run is stored when
    it ends, and is not done again. So the same command continues a benchmark that was stopped.
    """
    session.not_remote(MEASURED_HERE)
    from bench.cases.quality import improving
    from bench.cases.quality import setting as made
    from bench.cases.quality.cell_queue import run
    from bench.cases.quality.improved import BY_DEPTH, columns
    from bench.cases.quality.improving import Cell
    from bench.cases.quality.tasks import TRAIN, named
    from bench.harness.report import result
    from hmi.model.files import write_json
    from hmi.model.sources.root import load_root

    names = chosen["columns"] or [c.name for c in columns(chosen["teachers"], few=rows < TRAIN)]
    cells = list(dict.fromkeys(map(Cell.parse, chosen["cells"]))) or [
        Cell(task.name, min(rows, TRAIN), seed, name)
        for task in named(chosen["tasks"])
        for name in names
        for seed in range(seeds)
    ]
    setting = setting_of(session, chosen)
    plan = improving.ImprovedPlan(
        sets,
        chosen["corpora"],
        out / RUNS,
        tuple(cells),
        chosen["teachers"],
        not dev,
        setting.key,
        3600 * (chosen["cpu_hours"] or math.inf),
        chosen["at_once"],
    )
    improving.check(plan)
    session.may_start_jobs()
    tasks = named(list(dict.fromkeys(cell.task for cell in cells)))
    with job_bar() as bar:
        full = any(cell.column == BY_DEPTH for cell in cells)
        folder = made.prepare(setting, tasks, notes.print, bar.show, full=full)
    root = load_root(folder)
    try:
        for spec, found in run(plan, setting, folder, root, steps_shown()):
            notes.print(f"{spec['task']} {spec['arm']}, seed {spec['seed']}: dev {found['dev']:.4f}")
    finally:
        table = improving.summary(plan, root)
        name = "improved" if rows >= TRAIN else f"improved-{rows}"
        name = f"{name}-cells" if chosen["cells"] else name
        write_json(out / f"{name}.json", {**result("improved", []), "rows": table})
    if as_json:
        print_json(table)
    else:
        print_table(table, {key: key for row in table for key in row}, "nothing was trained")
