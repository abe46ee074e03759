"""What the store commands share: a domain as the store names it, and progress in bytes with rate and time left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from hmi.cli.output import notes


def ref_of(domain: str) -> str:
    """The ref of a domain written with dots or slashes; a tag after "@" may hold dots of its own."""
    name, at, tag = domain.partition("@")
    return name.replace(".", "/") + at + tag


@contextmanager
def byte_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Yields show(bytes done, bytes in all). Only a terminal gets a bar."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal) as bar:
        task = bar.add_task(what, total=None)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total or None)

        yield show
