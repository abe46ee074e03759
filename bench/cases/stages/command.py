"""`bench stages`: the execution stages and their planner, on real texts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from bench.harness.commands import FOLDER, SETS, Rows, case, given, quick_flag
from hmi.cli.framework.output import notes
from hmi.cli.framework.session import CliSession


@case(
    SETS,
    click.option("--traces", type=FOLDER, help="A folder with a trace of arrivals: *.csv.gz with TIMESTAMP."),
    click.option("--root", help="The root whose models have exits.  [default: minilm]"),
    click.option("--small", help="The root of the small level, for the cascade between two roots."),
    click.option("--source", help="What --root is imported from if the folder lacks it."),
    click.option(
        "--only", "sections", multiple=True, metavar="SECTION", help="exits, cascade, tokens, … Repeatable."
    ),
    click.option("--task", "tasks", multiple=True, help="A set. Repeatable.  [default: four of them]"),
    click.option("--runs", type=click.IntRange(1, 1_000), help="Repetitions of each ratio.  [default: 7]"),
    click.option("--texts", type=click.IntRange(10), help="Texts of each stream.  [default: 3000]"),
    quick_flag("Few texts of one set"),
)
def stages(session: CliSession, sets: Path, quick: bool, **wanted: Any) -> Rows:
    """Early exits, cascades, token adaptation and their planner on real texts, beside an engine without them.

    The first run trains the models in the folder that --data names; later runs use them.
    """
    session.may_start_jobs()
    from bench.cases.stages.home import measured
    from bench.cases.stages.plan import QUICK, StagesPlan

    plan = StagesPlan(sets, **{**(QUICK if quick else {}), **given(wanted)})
    with _progress() as report:
        yield from measured(plan, session.settings().data, report)


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
