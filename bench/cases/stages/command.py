"""`bench stages`: the execution stages and their planner, on real texts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from bench.harness.rows import FOLDER, MEASURED_HERE, shown
from hmi.cli.framework.base import FolderCommand, as_json, pass_session
from hmi.cli.framework.output import notes
from hmi.cli.framework.session import CliSession


@click.command("stages", cls=FolderCommand)
@click.option("--sets", type=FOLDER, required=True, help="Labelled sets: NAME/{train,dev,test}.jsonl.gz.")
@click.option("--traces", type=FOLDER, help="A folder with a trace of arrivals: *.csv.gz with TIMESTAMP.")
@click.option("--root", help="The root whose models have exits.  [default: minilm]")
@click.option("--small", help="The root of the small level, for the cascade between two roots.")
@click.option("--source", help="What --root is imported from if the folder lacks it.")
@click.option("--only", multiple=True, metavar="SECTION", help="exits, cascade, tokens, … Repeatable.")
@click.option("--task", "tasks", multiple=True, help="A set. Repeatable.  [default: four of them]")
@click.option("--runs", type=click.IntRange(1, 1_000), help="Repetitions of each ratio.  [default: 7]")
@click.option("--texts", type=click.IntRange(10), help="Texts of each stream.  [default: 3000]")
@click.option("--quick", is_flag=True, help="Few texts of one set: shows that the benchmark works.")
@as_json
@pass_session
def stages(
    session: CliSession,
    sets: Path,
    only: tuple[str, ...],
    tasks: tuple[str, ...],
    quick: bool,
    as_json: bool,
    **wanted: Any,
) -> None:
    """Early exits, cascades, token adaptation and their planner on real texts, beside an engine without them.

    The first run trains the models in the folder that --data names; later runs use them.
    """
    session.not_remote(MEASURED_HERE)
    session.may_start_jobs()
    from bench.cases.stages.home import measured
    from bench.cases.stages.plan import QUICK, Plan

    given = {**QUICK} if quick else {}
    given |= {name: value for name, value in wanted.items() if value is not None}
    given |= {name: value for name, value in (("sections", only), ("tasks", tasks)) if value}
    with shown("stages", as_json) as found, _progress() as report:
        found.extend(measured(Plan(sets, **given), session.settings().data, report))


class _Report:
    """Shows the work at hand, and the number of texts that have been asked."""

    def __init__(self, bar: Progress) -> None:
        self._bar, self._task = bar, bar.add_task("")

    def say(self, what: str) -> None:
        self._bar.update(self._task, description=what)
        if not notes.is_terminal:
            notes.print(what)

    def did(self, texts: int) -> None:
        self._bar.advance(self._task, texts)


@contextmanager
def _progress() -> Iterator[_Report]:
    columns = (TextColumn("{task.description}: {task.completed:.0f} texts asked"), TimeElapsedColumn())
    with Progress(*columns, console=notes, transient=True) as bar:
        yield _Report(bar)
