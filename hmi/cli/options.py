"""Options that several commands share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]

_FACTORS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
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


def as_bytes(text: str) -> int:
    """ "50M" → 52428800. Raises ValueError."""
    factor = _FACTORS.get(text[-1:].upper(), 1)
    found = float(text[:-1] if factor > 1 else text) * factor
    if not 1 <= found < 1 << 60:
        raise ValueError(f"{text!r} is outside 1 byte to 2**60")
    return int(found)


def _budget(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    try:
        return None if text is None else as_bytes(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no size: give bytes, such as 50M") from None


budget_option = click.option(
    "--budget", callback=_budget, metavar="BYTES",
    help="Store the most frequent n-grams that fit in this many bytes, such as 50M, instead of --alpha.",
)  # fmt: skip


def extent(alpha: float | None, budget: int | None, options: dict[str, Any] | None = None) -> dict[str, Any]:
    """The fields of a body that say how much a build stores; what is None is left out."""
    given = dict(options or {}) if budget is None else {**(options or {}), "budget_bytes": budget}
    return {"options": given} if alpha is None else {"alpha": alpha, "options": given}


def confirm(what: str, yes: bool) -> None:
    """Ask before deleting, unless --yes; raises click.Abort."""
    if not yes:
        click.confirm(f"Delete {what}?", abort=True, err=True)


yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask.")
