"""`bench quality` and `tenants`: tenants' models beside dedicated copies, on labelled sets."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from bench.harness.rows import FOLDER, MEASURED_HERE, OUT, quick, shown
from hmi.cli.framework.base import FolderCommand, as_json, pass_session
from hmi.cli.framework.output import notes, print_json, print_table
from hmi.cli.framework.progress import job_bar
from hmi.cli.framework.session import CliSession
from hmi.core import ModuleSpec
from hmi.errors import InvalidInput

if TYPE_CHECKING:
    from bench.cases.quality.models import Encoders
    from bench.cases.quality.setting import Setting

RUNS = "runs.jsonl"


Command = Callable[..., None]


def _adding(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that adds these options to a command; `--help` shows the last one first."""

    def add(command: Command) -> Command:
        for option in options:
            command = option(command)
        return command

    return add


SMALL: Final = {"tasks": ["sst2"], "no_domain": True, "general": 1}
"""The setting of --quick."""
of_a_setting = _adding(
    click.option(
        "--pretrain",
        default=0,
        show_default=True,
        type=click.IntRange(0),
        help="Steps of further pretraining on a domain's text.",
    ),
    click.option("--root", help="A root of the data folder.  [default: the default source is imported]"),
    click.option("--no-domain", is_flag=True, help="Use the general PLOT alone for every task."),
    click.option(
        "--alpha", type=click.FloatRange(0, 100), help="Coverage of the domains' PLOTs, instead of --budget."
    ),
    click.option(
        "--budget",
        default=500,
        show_default=True,
        type=click.IntRange(1),
        help="Megabytes of a domain's PLOT.",
    ),
    click.option(
        "--general",
        default=1_000,
        show_default=True,
        type=click.IntRange(1),
        help="Megabytes of the general PLOT.",
    ),
    click.option("--task", "tasks", multiple=True, help="A task to run. Repeatable.  [default: all]"),
    click.option("--out", type=OUT, required=True, help="Folder for runs, tables and plots."),
    click.option(
        "--corpora", type=FOLDER, required=True, help="Unlabelled text of the domains: NAME.txt.gz."
    ),
    click.option("--sets", type=FOLDER, required=True, help="Labelled sets: NAME/{train,dev,test}.jsonl.gz."),
)
"""Add the options that select root, PLOTs, sets and tasks."""


of_the_rows = _adding(
    click.option("--dev", is_flag=True, help="Score dev only and leave test unread, for making choices."),
    click.option(
        "--rows",
        default=2_000,
        show_default=True,
        type=click.IntRange(20),
        help="At most this many training rows.",
    ),
    click.option(
        "--seeds", default=3, show_default=True, type=click.IntRange(1, 100), help="Number of seeds."
    ),
)
"""Add the options that select seeds, the number of rows, and whether test is scored."""


@click.command("quality", cls=FolderCommand)
@of_a_setting
@quick(**SMALL, arms=["dedicated", "hbert"], lrs=[1e-3], rows=20, seeds=1, dev=True)
@click.option(
    "--arm", "arms", multiple=True, help="A column to run: dedicated, hbert, … Repeatable.  [default: all]"
)
@click.option(
    "--module",
    "modules",
    multiple=True,
    metavar="KIND[@SITES][:RANK]",
    help="Module of HMI's column. Repeatable.  [default: HMI's]",
)
@of_the_rows
@click.option(
    "--lr",
    "lrs",
    multiple=True,
    type=click.FloatRange(0, 0.1, min_open=True),
    help="A learning rate to try. Repeatable.  [default: by column]",
)
@click.option(
    "--texts",
    default=12_000,
    show_default=True,
    type=click.IntRange(1, 20_000),
    help="At most this many unlabelled texts.",
)
@as_json
@pass_session
def quality(
    session: CliSession,
    sets: Path,
    out: Path,
    modules: tuple[str, ...],
    seeds: int,
    rows: int,
    dev: bool,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Compare a shared encoder, an adapter only, a PLOT only, HMI's model and a dedicated copy on every task.

    Each run is stored when it ends, so the same command continues an interrupted benchmark. --data names the
    folder of the root and the PLOTs, which the first run creates.
    """
    session.not_remote(MEASURED_HERE)
    from bench.cases.quality import run as measured
    from bench.cases.quality.cells import Budget
    from bench.cases.quality.results import as_json as tabled
    from bench.cases.quality.results import write
    from bench.cases.quality.tables import markdown

    plan = measured.Plan(
        sets,
        out / RUNS,
        chosen["tasks"],
        chosen["arms"],
        tuple(map(_module, modules)),
        Budget(seeds, not dev),
        rows,
        chosen["lrs"],
        setting_of(session, chosen).key,
        chosen["texts"],
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


@click.command("tenants", cls=FolderCommand)
@of_a_setting
@quick(**SMALL, tenants=2, rows=20)
@click.option("--arm", default="hbert", show_default=True, help="A column of `bench quality`.")
@click.option(
    "--lr",
    default=2e-3,
    show_default=True,
    type=click.FloatRange(0, 0.1, min_open=True),
    help="Learning rate.",
)
@click.option(
    "--tenants", default=500, show_default=True, type=click.IntRange(1, 100_000), help="Number of tenants."
)
@click.option(
    "--rows", default=200, show_default=True, type=click.IntRange(20, 2_000), help="Rows of each tenant."
)
@as_json
@pass_session
def tenants(
    session: CliSession,
    sets: Path,
    out: Path,
    arm: str,
    lr: float,
    tenants: int,
    rows: int,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Train many tenants with few rows each: mean score by number of tenants, and each tenant's CPU time.

    Run it once for each column with the same --out. Finished tenants are not trained again.
    """
    session.not_remote(MEASURED_HERE)
    from bench.cases.quality import run as measured
    from bench.cases.quality import tenants as many
    from bench.cases.quality.results import write_tenants

    plan = many.TenantsPlan(sets, out / "tenants.jsonl", chosen["tasks"], tenants, rows)
    (column,) = measured.chosen_arms(
        main := measured.Plan(sets, out, arms=(arm,), plot=setting_of(session, chosen).key)
    )
    with models_of(session, chosen, plots=column.reads == "plot") as models:
        about = measured.about(main, column, models.root)
        try:
            for spec, result in many.run(plan, column, lr, about, models, steps_shown()):
                notes.print(f"tenant {spec['tenant']}, {_line({'seed': 0, **spec}, result)}")
        finally:
            found = write_tenants(out, plan.runs)
    print_json(found) if as_json else print_table(
        found["rows"], {k: k for k in found["rows"][0]}, "nothing was trained"
    )


def setting_of(session: CliSession, chosen: Mapping[str, Any]) -> Setting:
    from bench.cases.quality.setting import Amount, Setting

    alpha = chosen["alpha"]
    size = {"megabytes": chosen["budget"]} if alpha is None else {"alpha": alpha}
    domain = None if chosen["no_domain"] else Amount(**size, pretrain=chosen["pretrain"])
    general = Amount(megabytes=chosen["general"])
    return Setting(session.settings().data, chosen["corpora"], general, domain, chosen["root"])


@contextmanager
def models_of(session: CliSession, chosen: Mapping[str, Any], *, plots: bool) -> Iterator[Encoders]:
    """Open the root and the PLOTs. Those that are missing are created first."""
    from bench.cases.quality import setting as made
    from bench.cases.quality.tasks import named

    session.may_start_jobs()
    setting = setting_of(session, chosen)
    with job_bar() as bar:
        folder = made.prepare(setting, named(chosen["tasks"]) if plots else [], notes.print, bar.show)
    with made.opened(setting, folder) as models:
        yield models


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


@click.command(cls=FolderCommand)
@click.option("--sets", type=FOLDER, required=True, help="Labelled sets: NAME/{train,dev,test}.jsonl.gz.")
@click.option("--corpora", type=FOLDER, required=True, help="Unlabelled text: a folder with cs.txt.gz.")
@quick(megabytes=0.1, rows=20)
@click.option(
    "--megabytes",
    default=2.0,
    show_default=True,
    type=click.FloatRange(0.1),
    help="Megabytes of text for the PLOT.",
)
@click.option(
    "--rows",
    default=1_000,
    show_default=True,
    type=click.IntRange(20, 2_000),
    help="Training rows of each tenant.",
)
@as_json
@pass_session
def steps(session: CliSession, sets: Path, corpora: Path, megabytes: float, rows: int, as_json: bool) -> None:
    """CPU time and peak memory of a root import, a PLOT build, and tenants with and without a teacher."""
    session.not_remote(MEASURED_HERE)
    from bench.cases.quality import steps as measured

    session.may_start_jobs()
    with shown("steps", as_json) as found, job_bar() as bar:
        found.extend(measured.run(measured.Steps(sets, corpora, megabytes, rows), notes.print, bar.show))
