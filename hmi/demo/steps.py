"""The demo's progress output: numbered steps with their times, and jobs with progress and time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from hmi.client import Client, JobStatus
from hmi.errors import Unavailable

_POLL_S = 0.5


@dataclass
class Steps:
    """The console output of the steps, and their times in order."""

    console: Console
    total: int
    times: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        number, start = len(self.times) + 1, time.monotonic()
        self.console.print(f"[bold][{number}/{self.total}] {title}[/bold]", highlight=False)
        yield
        self.times[title] = round(time.monotonic() - start, 1)
        self.say(f"done in {self.times[title]} s")

    def say(self, line: str) -> None:
        self.console.print(f"      {line}", highlight=False, markup=False, soft_wrap=True)

    def bar(self) -> Progress:
        columns = (TextColumn("      {task.description}"), BarColumn(24), MofNCompleteColumn())
        return Progress(
            *columns,
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )


def follow(
    client: Client, jobs: dict[str, str], steps: Steps, ended: Callable[[str, JobStatus], None]
) -> None:
    """Follow jobs (by id, what each creates) until all have ended.

    `ended` gets each last status as it comes.
    """
    with steps.bar() as bar:
        rows = {job: bar.add_task(what, total=None) for job, what in jobs.items()}
        open_jobs = dict(jobs)
        while open_jobs:
            for job, what in list(open_jobs.items()):
                status = client.jobs.get(job)
                progress = status.progress
                label = f"{what} {progress.phase or status.state}"
                bar.update(
                    rows[job], description=label, completed=progress.step, total=progress.total or None
                )
                if status.done:
                    bar.remove_task(rows[job])
                    del open_jobs[job]
                    ended(what, status)
            time.sleep(_POLL_S if open_jobs else 0)


def succeeded(what: str, status: JobStatus) -> dict[str, Any]:
    """Return the result of a job. Raises Unavailable with the job's reason if it did not succeed."""
    if status.state != "succeeded":
        reason = (status.error or {}).get("message", status.state)
        raise Unavailable(f"{what} could not be made: {reason}")
    return status.result or {}
