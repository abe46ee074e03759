"""Options that several commands share."""

from __future__ import annotations

import functools
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from hmi.errors import InvalidInput
from hmi.sizes import FORMS, parse_bytes

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def job_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --detach and --json, for commands that start a job."""
    detach = click.option("--detach", is_flag=True, help="Start the job and print its id, without waiting.")
    return detach(click.option("--json", "as_json", is_flag=True, help="Print the job as JSON.")(function))


def settings_option(name: str = "--option") -> Wrap:
    """Add a repeatable option NAME=VALUE. Dots in NAME nest; a VALUE that is not JSON is a string."""
    return click.option(
        name,
        "options",
        multiple=True,
        metavar="NAME=VALUE",
        callback=lambda _context, _parameter, pairs: nested(pairs),
        help="Set an option of the job, such as epochs=3 or module.rank=8. Repeatable.",
    )


def nested(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Parse ("module.rank=8",) to {"module": {"rank": 8}}. Raises click.BadParameter."""
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


class Number(click.FloatRange):
    """A number from `least` to `most`. Refuses "nan", which passes click's own comparison."""

    name = "number"

    def __init__(self, least: float, most: float) -> None:
        super().__init__(least, most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value!r} is not a number: give one from {self.min:g} to {self.max:g}", param, ctx)
        return found


class Whole(click.IntRange):
    """An integer, which messages call a whole number."""

    name = "whole number"


PERCENT = Number(0, 100)


class Bytes(click.ParamType):  # type: ignore[type-arg]  # click 8.1 has no argument there
    """A size in bytes, at least 1, such as 50M."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else parse_bytes(value, least=1)
        except ValueError:
            self.fail(f"{value!r} is not a size: give {FORMS}", param, ctx)


def encoding_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --encoding to a command that has `settings_option`: one of the job's options."""

    @functools.wraps(function)
    def command(*arguments: Any, encoding: str | None, options: dict[str, Any], **given: Any) -> Any:
        told = {} if encoding is None else {"encoding": encoding}
        return function(*arguments, options={**options, **told}, **given)

    text = "The encoding of the text, such as windows-1252."
    return click.option("--encoding", metavar="NAME", help=text)(command)


budget_option = click.option(
    "--budget",
    type=Bytes(),
    metavar="SIZE",
    help="Instead of --alpha: store the most frequent n-grams that fit in SIZE, in bytes or as 50M.",
)


def extent(alpha: float | None, budget: int | None, options: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the fields of a request body that limit how much a build stores. What is None is left out."""
    given = dict(options or {}) if budget is None else {**(options or {}), "budget_bytes": budget}
    return {"options": given} if alpha is None else {"alpha": alpha, "options": given}


def confirm(what: str, yes: bool, look: Callable[[], Any]) -> None:
    """Ask before deleting, unless `yes`.

    `look` runs before the question and raises NotFound if there is nothing to delete. Raises click.UsageError
    without a terminal to ask at, Exit if the answer is no.
    """
    if yes:
        return
    look()
    try:
        agreed = click.confirm(f"Delete {what}?", err=True)
    except click.Abort:
        if sys.stdin is not None and sys.stdin.isatty():
            raise  # Ctrl-C
        click.echo(err=True)
        raise click.UsageError(
            f"nothing was deleted: there is no terminal to ask at; add --yes to delete {what}"
        ) from None
    if not agreed:
        click.echo("nothing was deleted", err=True)
        raise click.exceptions.Exit(1)


yes_option = click.option("--yes", "-y", is_flag=True, help="Delete without asking.")


def check_target(file: Path) -> None:
    """Raises InvalidInput unless `file` is a plain file, or a new one in a folder that exists."""
    if not file.parent.is_dir():
        raise InvalidInput(
            f"there is no folder {file.parent}: create it first, or name another file", field="file"
        )
    if file.exists() and not file.is_file():
        raise InvalidInput(f"{file} is not a plain file, and would be replaced: name another", field="file")
