"""`bench stages`: the execution stages and their planner, on real texts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bench.harness.rows import FOLDER, MEASURED_HERE, OUT, shown
from hmi.cli.base import FolderCommand, as_json, pass_session
from hmi.cli.output import notes
from hmi.cli.session import Session


@click.command("stages", cls=FolderCommand)
@click.option("--sets", type=FOLDER, required=True, help="Labelled sets: NAME/{train,dev,test}.jsonl.gz.")
@click.option("--traces", type=FOLDER, help="A folder with a trace of arrivals: *.csv.gz with TIMESTAMP.")
@click.option("--root", help="The root whose models have exits.  [default: minilm]")
@click.option("--small", help="The root of the small level, for the cascade between two roots.")
@click.option("--source", help="What --root is imported from if the folder lacks it.")
@click.option(
    "--only",
    multiple=True,
    metavar="SECTION",
    help="exits, cascade, throughput, off, isolation, tokens, utility, planner or overhead. Repeatable.  "
    "[default: all]",
)
@click.option("--task", "tasks", multiple=True, help="A set. Repeatable.  [default: four of them]")
@click.option("--runs", type=click.IntRange(1, 1_000), help="Repetitions of each ratio.  [default: 7]")
@click.option("--texts", type=click.IntRange(10), help="Texts of each stream.  [default: 3000]")
@click.option(
    "--warm",
    type=click.IntRange(1),
    help="The first texts of a stream, asked at full speed.  [default: 1500]",
)
@click.option("--before", type=click.IntRange(1), help="Texts between them and the drift.  [default: 600]")
@click.option(
    "--load", type=click.FloatRange(0.01, 0.95), help="Arrivals, as a part of the capacity.  [default: 0.5]"
)
@click.option("--labelled", type=click.IntRange(10), help="Rows that models are trained on.  [default: 500]")
@click.option("--unlabelled", type=click.IntRange(0), help="Further texts for ramps.  [default: 2000]")
@click.option("--answers", type=click.IntRange(1), help="Answers to check for isolation.  [default: 10000]")
@click.option(
    "--replays", type=click.IntRange(1), help="Replays of each trace, for utility and planner.  [default: 3]"
)
@click.option(
    "--pressure", type=click.FloatRange(0.01, 100), help="A factor of these traces' rates.  [default: 1.5]"
)
@click.option(
    "--prompts", is_flag=True, default=None, help="Also train prompts for models of --root, which takes long."
)
@click.option("--plots", type=OUT, help="Write plots (SVG) to this folder.")
@as_json
@pass_session
def stages(
    session: Session, sets: Path, only: tuple[str, ...], tasks: tuple[str, ...], as_json: bool, **wanted: Any
) -> None:
    """Early exits, cascades, token adaptation and their planner on real texts, beside an engine without them.

    The first run trains the models in the folder that --data names; later runs use them.
    """
    session.not_remote(MEASURED_HERE)
    session.may_start_jobs()
    from bench.cases.stages import run as measured
    from bench.cases.stages.plan import Plan

    given = {name: value for name, value in wanted.items() if value is not None}
    given |= {name: value for name, value in (("sections", only), ("tasks", tasks)) if value}
    plan = Plan(sets, **given)
    with shown("stages", as_json) as found, _progress(measured.texts(plan)) as report:
        found.extend(measured.run(plan, session.settings().data, report))


class _Report:
    """Shows the work at hand, and the part of the texts that have been asked."""

    def __init__(self, bar: Progress, total: int) -> None:
        self._bar, self._task = bar, bar.add_task("", total=total)

    def say(self, what: str) -> None:
        self._bar.update(self._task, description=what)
        if not notes.is_terminal:
            notes.print(what)

    def did(self, texts: int) -> None:
        self._bar.advance(self._task, texts)


@contextmanager
def _progress(texts: int) -> Iterator[_Report]:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=notes, transient=True) as bar:
        yield _Report(bar, texts)
