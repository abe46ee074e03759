"""A progress bar in bytes, with rate and time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from hmi.cli.framework.output import notes, size

LINE_EVERY_S = 5.0
"""Without a terminal, a line is printed this often instead of a bar."""
Show = Callable[[int, int], None]


@contextmanager
def byte_bar(what: str) -> Iterator[Show]:
    """Yield a function show(bytes done, bytes in all). Without a terminal it prints a line now and then."""
    if not notes.is_terminal:
        yield _lines(what)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=notes, transient=True) as bar:
        task = bar.add_task(what, total=None)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total or None)

        yield show


def _lines(what: str) -> Show:
    began = told = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal told
        at = time.monotonic()
        if at - told < LINE_EVERY_S or done >= total:
            return
        told = at
        rate = done / (at - began)
        left = f", {(total - done) / rate:.0f} s left" if done else ""
        notes.print(f"{what}: {size(done)} of {size(total)}, {size(rate)}/s{left}", soft_wrap=True)

    return show
