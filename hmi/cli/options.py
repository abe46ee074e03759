"""Options that several commands share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def job_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """--detach and --json, for commands that start a job."""
    detach = click.option("--detach", is_flag=True, help="Start the job and print its id, without waiting.")
    return detach(click.option("--json", "as_json", is_flag=True, help="Print the job as JSON.")(function))


def settings_option(name: str = "--option") -> Wrap:
    """Repeatable NAME=VALUE, nested by dots (module.rank=8); values are JSON where they parse as JSON."""
    return click.option(
        name,
        "options",
        multiple=True,
        metavar="NAME=VALUE",
        callback=lambda _context, _parameter, pairs: nested(pairs),
        help="Set an option of the job, such as epochs=3 or module.rank=8. Repeatable.",
    )


def nested(pairs: tuple[str, ...]) -> dict[str, Any]:
    """("module.rank=8",) → {"module": {"rank": 8}}; raises click.BadParameter."""
    result: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{pair!r} is not of the form NAME=VALUE")
        inner = result
        *folders, leaf = name.split(".")
        for folder in folders:
            inner = inner.setdefault(folder, {})
            if not isinstance(inner, dict):
                raise click.BadParameter(f"{folder!r} is given both a value and values below it")
        try:
            inner[leaf] = json.loads(text)
        except ValueError:
            inner[leaf] = text
    return result


def confirm(what: str, yes: bool) -> None:
    """Ask before deleting, unless --yes; raises click.Abort."""
    if not yes:
        click.confirm(f"Delete {what}?", abort=True, err=True)


yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask.")
