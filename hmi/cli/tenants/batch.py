"""The progress and the summary of a batch of entries, for all commands that run one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hmi.cli.framework.output import notes, print_table
from hmi.cli.framework.session import Calls, CliSession
from hmi.cli.tenants.batch_state import Outcome

if TYPE_CHECKING:
    from hmi.api.process.local import LocalCalls

Run = Callable[[Callable[[Outcome], None]], list[Outcome]]
LINE_EVERY_S = 5.0
"""Without a terminal, a line about the progress is printed this often."""
SHOWN = 20
"""The most entries in a summary's table. The report has them all."""


@dataclass
class Tally:
    """The counts of what a batch has done so far."""

    total: int
    began: float = field(default_factory=time.monotonic)
    created: int = 0
    unchanged: int = 0
    failed: int = 0

    def count(self, outcome: Outcome) -> None:
        self.unchanged += outcome.unchanged
        self.failed += not outcome.done
        self.created += outcome.done and not outcome.unchanged

    @property
    def ended(self) -> int:
        return self.created + self.unchanged + self.failed

    def line(self) -> str:
        """One line with counts, rate and time left."""
        seconds = time.monotonic() - self.began
        worked = self.created + self.failed
        rate = worked / seconds if seconds else 0.0
        left = f", {_clock((self.total - self.ended) / rate)} left" if rate else ""
        return (
            f"{self.ended}/{self.total}: {self.created} made, {self.unchanged} unchanged, {self.failed} "
            f"failed; {rate:.2f} a second{left}"
        )


def run_with_bar(total: int, run: Run) -> tuple[list[Outcome], bool]:
    """Run a batch of `total` entries and show how it goes. Returns the outcomes, and whether all have ended.

    Without a terminal there is no bar, but a line every few seconds; each failure prints a line at once.
    Ctrl-C ends the batch: the outcomes so far are returned.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    tally, told, seen = Tally(total), time.monotonic(), list[Outcome]()
    with Progress(*columns, console=notes, disable=not notes.is_terminal) as bar:
        task = bar.add_task("starting", total=total)

        def show(outcome: Outcome) -> None:
            nonlocal told
            tally.count(outcome)
            seen.append(outcome)
            bar.update(task, advance=1, description=outcome.id)
            if not outcome.done:
                bar.console.print(f"{outcome.id} failed: {outcome.reason}", markup=False, soft_wrap=True)
            if not notes.is_terminal and time.monotonic() - told >= LINE_EVERY_S:
                told = time.monotonic()
                notes.print(tally.line(), soft_wrap=True)

        try:
            return run(show), True
        except KeyboardInterrupt:
            notes.print("interrupted: run the same command again to continue")
            return seen, False


def summary(outcomes: Iterable[Outcome]) -> int:
    """Print a table of failures and of the worst scores, and the counts. Returns the exit code: 1 if any
    failed, else 0."""
    outcomes = list(outcomes)
    tally = Tally(len(outcomes))
    for outcome in outcomes:
        tally.count(outcome)
    shown = worth_a_look(outcomes)
    headings = dict.fromkeys(name for outcome in shown for name in outcome.figures)
    rows = [
        {"id": o.id, "state": o.state, **o.figures, "seconds": o.seconds, "reason": o.reason} for o in shown
    ]
    columns = {
        "id": "NAME",
        "state": "STATE",
        **{name: name.upper() for name in headings},
        "seconds": "SECONDS",
        "reason": "REASON",
    }
    print_table(rows, columns, "nothing")
    if len(shown) < len(outcomes):
        notes.print(f"of {len(outcomes)} entries, the failed ones and the worst scores are shown")
    if outcomes and tally.unchanged == len(outcomes):
        notes.print("nothing was changed: everything in the plan exists already")
    notes.print(f"{tally.created} made, {tally.unchanged} unchanged, {tally.failed} failed")
    return 1 if tally.failed else 0


def worth_a_look(outcomes: list[Outcome]) -> list[Outcome]:
    """Return at most SHOWN outcomes, the failed ones first, then those with the worst scores."""
    if len(outcomes) <= SHOWN:
        return outcomes
    failed = [o for o in outcomes if not o.done]
    scored = sorted((o for o in outcomes if o.done and o.score is not None), key=lambda o: o.quality)
    return [*failed, *scored][:SHOWN]


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


@contextmanager
def jobs_running(session: CliSession, calls: Calls) -> Iterator[None]:
    """Run jobs in child processes of this one while the context is open, unless a server runs them.

    Unfinished jobs go back to the queue at the end.
    """
    if session.remote:
        yield
        return
    runner = cast("LocalCalls", calls).services.manager.runner
    runner.start(background=False)  # the command ends with its own jobs
    try:
        yield
    finally:
        runner.stop()
