"""`bench quality`, `tenants`, `steps` and `improved`: what a tenant's model scores and costs."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from bench.harness.commands import FOLDER, SETS, Option, Rows, amount, case, quick, table_command
from hmi.cli.framework.options import Number
from hmi.cli.framework.output import notes, print_json, print_table
from hmi.cli.framework.progress import job_bar
from hmi.cli.framework.session import CliSession
from hmi.core import ModuleSpec
from hmi.errors import InvalidInput

if TYPE_CHECKING:
    from bench.cases.quality.models import Encoders
    from bench.cases.quality.setting import PlotSetting

RUNS = "runs.jsonl"
OUT = click.Path(file_okay=False, path_type=Path)
RATE = click.FloatRange(0, 0.1, min_open=True)
SMALL: Final = {"tasks": ["sst2"], "no_domain": True, "general": 1}
"""The setting of --quick."""


def corpora(about: str) -> Option:
    return click.option("--corpora", type=FOLDER, required=True, help=f"Unlabelled text{about}.")


def repeated(name: str, values: str, about: str, **more: Any) -> Option:
    """Return an option that may be given several times. The command's argument for it is `values`."""
    return click.option(name, values, multiple=True, help=about, **more)


OF_A_SETTING = (
    SETS,
    corpora(" of the domains: NAME.txt.gz"),
    click.option("--out", type=OUT, required=True, help="Folder for runs, tables and plots."),
    repeated("--task", "tasks", "A task to run. Repeatable.  [default: all]"),
    amount("--general", 1_000, click.IntRange(1), "Megabytes of the general PLOT."),
    amount("--budget", 500, click.IntRange(1), "Megabytes of a domain's PLOT."),
    click.option(
        "--alpha", type=click.FloatRange(0, 100), help="Coverage of the domains' PLOTs, instead of --budget."
    ),
    click.option("--no-domain", is_flag=True, help="Use the general PLOT alone for every task."),
    click.option("--root", help="A root of the data folder.  [default: the default source is imported]"),
    amount("--pretrain", 0, click.IntRange(0), "Steps of further pretraining on a domain's text."),
)
"""The options that select root, PLOTs, sets and tasks."""
OF_THE_ROWS = (
    amount("--seeds", 3, click.IntRange(1, 100), "Number of seeds."),
    amount("--rows", 2_000, click.IntRange(20), "At most this many training rows."),
    click.option("--dev", is_flag=True, help="Score dev only and leave test unread, for making choices."),
)
"""The options that select seeds, the number of rows, and whether test is scored."""


def _module(text: str) -> ModuleSpec:
    """Parse KIND[@SITES][:RANK]. Raises InvalidInput.

    The default rank is the largest that fits the default size, so that kinds are compared at about equal
    numbers of parameters.
    """
    named, colon, rank = text.partition(":")
    kind, _, sites = named.partition("@")
    given: dict[str, Any] = {"kind": kind, **({"sites": sites} if sites else {})}
    try:
        return ModuleSpec(**given, **({"rank": int(rank)} if colon else {"size": "default"}))
    except ValueError as error:
        raise InvalidInput(
            f"--module {text!r} is not KIND[@SITES][:RANK], such as lora:12", field="module"
        ) from error


@table_command(
    *OF_A_SETTING,
    quick(**SMALL, arms=["dedicated", "hbert"], lrs=[1e-3], rows=20, seeds=1, dev=True),
    repeated("--arm", "arms", "A column to run: dedicated, hbert, … Repeatable.  [default: all]"),
    repeated(
        "--module",
        "modules",
        "Module of HMI's column. Repeatable.  [default: HMI's]",
        metavar="KIND[@SITES][:RANK]",
        type=_module,
    ),
    *OF_THE_ROWS,
    repeated("--lr", "lrs", "A learning rate to try. Repeatable.  [default: by column]", type=RATE),
    amount("--texts", 12_000, click.IntRange(1, 20_000), "At most this many unlabelled texts."),
)
def quality(session: CliSession, sets: Path, out: Path, dev: bool, as_json: bool, **chosen: Any) -> None:
    """Compare a shared encoder, an adapter only, a PLOT only, HMI's model and a dedicated copy on every task.

    Each run is stored when it ends, so the same command continues an interrupted benchmark. --data names the
    folder of the root and the PLOTs, which the first run creates.
    """
    from bench.cases.quality import run as measured
    from bench.cases.quality.results import as_json as tabled
    from bench.cases.quality.results import write
    from bench.cases.quality.tables import markdown

    of_the_plan = ("tasks", "arms", "modules", "seeds", "rows", "lrs", "texts")
    plan = measured.QualityPlan(
        sets,
        out / RUNS,
        test=not dev,
        plot=setting_of(session, chosen).key,
        **{name: chosen[name] for name in of_the_plan},
    )
    arms = measured.chosen_arms(plan)  # refuse a misspelt name now, not after hours
    with models_of(session, chosen, plots=any(arm.reads == "plot" for arm in arms)) as models:
        try:
            for spec, result in measured.run(plan, models, steps_shown()):
                notes.print(_line(spec, result))
        finally:
            found = measured.scores(plan, models.root)
            write(out, found, plan)
    print_json(tabled(found)) if as_json else click.echo(markdown(found))


@table_command(
    *OF_A_SETTING,
    quick(**SMALL, tenants=2, rows=20),
    click.option("--arm", default="hbert", show_default=True, help="A column of `bench quality`."),
    amount("--lr", 2e-3, RATE, "Learning rate."),
    amount("--tenants", 500, click.IntRange(1, 100_000), "Number of tenants."),
    amount("--rows", 200, click.IntRange(20, 2_000), "Rows of each tenant."),
)
def tenants(
    session: CliSession, sets: Path, out: Path, arm: str, lr: float, as_json: bool, **chosen: Any
) -> None:
    """Train many tenants with few rows each: mean score by number of tenants, and each tenant's CPU time.

    Run it once for each column with the same --out. Finished tenants are not trained again.
    """
    from bench.cases.quality import run as measured
    from bench.cases.quality import tenants as many
    from bench.cases.quality.results import write_tenants

    plan = many.TenantsPlan(sets, out / "tenants.jsonl", chosen["tasks"], chosen["tenants"], chosen["rows"])
    main = measured.QualityPlan(sets, out, arms=(arm,), plot=setting_of(session, chosen).key)
    (column,) = measured.chosen_arms(main)
    with models_of(session, chosen, plots=column.reads == "plot") as models:
        about = measured.about(main, column, models.root)
        try:
            for spec, result in many.run(plan, column, lr, about, models, steps_shown()):
                notes.print(f"tenant {spec['tenant']}, {_line({'seed': 0, **spec}, result)}")
        finally:
            found = write_tenants(out, plan.runs)
    print_json(found) if as_json else _print_rows(found["rows"])


@case(
    SETS,
    corpora(": a folder with cs.txt.gz"),
    quick(megabytes=0.1, rows=20),
    amount("--megabytes", 2.0, click.FloatRange(0.1), "Megabytes of text for the PLOT."),
    amount("--rows", 1_000, click.IntRange(20, 2_000), "Training rows of each tenant."),
)
def steps(session: CliSession, **sizes: Any) -> Rows:
    """CPU time and peak memory of a root import, a PLOT build, and tenants with and without a teacher."""
    from bench.cases.quality.steps import StepSizes

    session.may_start_jobs()
    with job_bar() as bar:
        yield from StepSizes(**sizes, say=notes.print, show=bar.show).run()


@table_command(
    *OF_A_SETTING,
    quick(**SMALL, cells=["sst2:20:0:copies_only"], dev=True),
    repeated(
        "--column", "columns", "A column to run: by_default, copies_only, … Repeatable.  [default: all]"
    ),
    repeated(
        "--teacher",
        "teachers",
        "A larger source to tune teachers from: a package, a folder or a hub id. Repeatable.",
        metavar="SOURCE",
    ),
    repeated(
        "--cell",
        "cells",
        "Run this cell, not all that other options select. Repeatable. DRAW 1, 2, … takes other rows.",
        metavar="SET:ROWS:SEED:COLUMN[:DRAW]",
    ),
    click.option(
        "--cpu-hours",
        type=Number(0.001, 10_000),
        help="End after this much CPU time of all cells together.  [default: no end]",
    ),
    amount("--at-once", 1, click.IntRange(1), "Work on this many sets at a time, each on one core."),
    *OF_THE_ROWS,
)
def improved(
    session: CliSession, sets: Path, out: Path, rows: int, dev: bool, as_json: bool, **chosen: Any
) -> None:
    """Train what a tenant gets without any option, and what each part of it adds.

    --out is the folder of `bench quality`, whose dedicated copies are the measure. A run is stored when
    it ends, and is not done again. So the same command continues a benchmark that was stopped.
    """
    from bench.cases.quality import improving
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
        for seed in range(chosen["seeds"])
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
    full = any(cell.column == BY_DEPTH for cell in cells)
    folder = _prepared(session, setting, list(dict.fromkeys(cell.task for cell in cells)), full=full)
    root = load_root(folder)
    try:
        for spec, found in run(plan, setting, folder, root, steps_shown()):
            notes.print(f"{spec['task']} {spec['arm']}, seed {spec['seed']}: dev {found['dev']:.4f}")
    finally:
        table = improving.summary(plan, root)
        name = "improved" if rows >= TRAIN else f"improved-{rows}"
        name = f"{name}-cells" if chosen["cells"] else name
        write_json(out / f"{name}.json", {**result("improved", []), "rows": table})
    print_json(table) if as_json else _print_rows(table)


def setting_of(session: CliSession, chosen: Mapping[str, Any]) -> PlotSetting:
    from bench.cases.quality.setting import Amount, PlotSetting

    alpha = chosen["alpha"]
    size = {"megabytes": chosen["budget"]} if alpha is None else {"alpha": alpha}
    domain = None if chosen["no_domain"] else Amount(**size, pretrain=chosen["pretrain"])
    general = Amount(megabytes=chosen["general"])
    return PlotSetting(session.settings().data, chosen["corpora"], general, domain, chosen["root"])


def _prepared(
    session: CliSession, setting: PlotSetting, tasks: Sequence[str] | None, *, full: bool = False
) -> Path:
    """Return the root's folder. The root and the PLOTs that are missing are created first.

    tasks: those whose PLOTs are needed; () for all tasks, None for no PLOT.
    """
    from bench.cases.quality.setting import prepare
    from bench.cases.quality.tasks import named

    session.may_start_jobs()
    with job_bar() as bar:
        return prepare(setting, named(tasks) if tasks is not None else [], notes.print, bar.show, full=full)


@contextmanager
def models_of(session: CliSession, chosen: Mapping[str, Any], *, plots: bool) -> Iterator[Encoders]:
    """Open the root and, if wanted, the PLOTs. Those that are missing are created first."""
    from bench.cases.quality.setting import opened

    setting = setting_of(session, chosen)
    with opened(setting, _prepared(session, setting, chosen["tasks"] if plots else None)) as models:
        yield models


def _print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    print_table(rows, {key: key for row in rows for key in row}, "nothing was trained")


def _line(spec: dict[str, Any], result: dict[str, Any]) -> str:
    about = " ".join(str(spec[k]) for k in ("task", "arm", "module") if k in spec)
    test = f", test {result['test']:.4f}" if "test" in result else ""
    return (
        f"{about}: lr {spec['lr']:g}, seed {spec['seed']}, dev {result['dev']:.4f}{test} "
        f"({result['cpu_s']:.0f} s)"
    )


def steps_shown() -> Callable[[str, int, int], None]:
    """Return a function that shows the current step: one line on a terminal, else a line each minute."""
    terminal, shown = sys.stderr.isatty(), [0.0]

    def report(what: str, step: int, total: int) -> None:
        now = time.monotonic()
        if now - shown[0] < (0.2 if terminal else 60):
            return
        shown[0] = now
        text = f"{what}: step {step} of {total}"
        click.echo(f"\r{text:<78}", nl=False, err=True) if terminal else click.echo(text, err=True)

    return report
