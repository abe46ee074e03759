"""A job's progress: a bar in a terminal, a line for each phase elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from hmi.client.answers import JobStatus

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

Report = Callable[[JobStatus], None]


class Step(Protocol):
    """The progress of a job, here or as the server sends it."""

    @property
    def phase(self) -> str: ...
    @property
    def step(self) -> int: ...
    @property
    def total(self) -> int: ...
    @property
    def rate(self) -> float | None: ...
    @property
    def eta_ms(self) -> int | None: ...
    @property
    def loss(self) -> float | None: ...


class JobBar:
    """A job's progress bar. Without a terminal it prints a line for each phase instead."""

    def __init__(self, bar: RichProgress, task: TaskID) -> None:
        self._bar, self._task = bar, task
        self._phase = ""

    def show(self, progress: Step) -> None:
        self._bar.update(
            self._task,
            description=progress.phase or "waiting",
            completed=progress.step,
            total=progress.total or None,
            figures=figures(progress),
        )
        if not self._bar.console.is_terminal and progress.phase not in ("", self._phase):
            self._bar.console.print(progress.phase)
        self._phase = progress.phase


def figures(progress: Step) -> str:
    """Return the rate, the time left and the loss, as far as they are known."""
    parts = []
    if progress.rate:
        parts.append(f"{progress.rate:.3g}/s")
    if progress.eta_ms is not None:
        seconds = int(progress.eta_ms / 1000)
        parts.append(f"ETA {seconds // 60}:{seconds % 60:02d}")
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.4g}")
    return "  ".join(parts)


@contextmanager
def job_bar(console: Console) -> Iterator[JobBar]:
    """Show a bar on `console` while the block runs."""
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TextColumn("{task.fields[figures]}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        yield JobBar(bar, bar.add_task("waiting", total=None, figures=""))


@contextmanager
def shown(progress: bool | Report, job: str) -> Iterator[Report]:
    """Report a job's statuses: to `progress` if it is a function, on standard error if it is True, nowhere
    if it is False."""
    if callable(progress):
        yield progress
    elif not progress:
        yield lambda status: None
    else:
        try:
            from rich.console import Console
        except ImportError:  # a client that was installed alone
            yield _lines(job)
            return
        with job_bar(Console(stderr=True)) as bar:
            yield lambda status: bar.show(status.progress)


def _lines(job: str) -> Report:
    said = ""

    def show(status: JobStatus) -> None:
        nonlocal said
        phase = status.progress.phase or status.state
        if phase != said:
            print(f"job {job}: {phase}", file=sys.stderr, flush=True)
        said = phase

    return show
