"""The commands of the cases: what all of them do, and the options that they write alike."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from bench.harness.rows import shown
from hmi.cli.framework.base import FolderCommand, as_json, pass_session
from hmi.cli.framework.session import CliSession

if TYPE_CHECKING:
    from bench.harness.report import Figure

MEASURED_HERE = "a benchmark measures this machine: leave --url out"
Rows: TypeAlias = "Iterable[Figure]"
"""The figures that a case yields."""
Option = Callable[[Callable[..., Any]], Callable[..., Any]]
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
SETS = click.option(
    "--sets", type=FOLDER, required=True, help="Labelled sets: NAME/{train,dev,test}.jsonl.gz."
)
"""The option --sets of the cases that train on labelled sets."""


def table_command(*options: Option) -> Callable[[Callable[..., None]], click.Command]:
    """Return a decorator that makes a command of a function, which shows its own table.

    The function is called with the session, the values of `options` and `as_json`. `--help` lists the options
    in their order. The command has the function's name and docstring, and measures no server.
    """

    def made(function: Callable[..., None]) -> click.Command:
        @pass_session
        @functools.wraps(function)
        def command(session: CliSession, **given: Any) -> None:
            session.not_remote(MEASURED_HERE)
            function(session, **given)

        added: list[Option] = [as_json, *reversed(options)]
        for option in added:
            command = option(command)
        return click.command(cls=FolderCommand)(command)

    return made


def case(*options: Option) -> Callable[[Callable[..., Rows]], click.Command]:
    """Return a decorator that makes a command of a function, which returns a case's figures.

    It is `table_command`, but the command shows the figures, as a table or as JSON. Those that are there are
    shown even after an error.
    """

    def made(function: Callable[..., Rows]) -> click.Command:
        @functools.wraps(function)
        def command(session: CliSession, *, as_json: bool, **given: Any) -> None:
            with shown(function.__name__, as_json) as found:
                found.extend(function(session, **given))

        return table_command(*options)(command)

    return made


def amount(name: str, default: float, kind: click.IntRange | click.FloatRange, about: str) -> Option:
    """Return an option whose help shows its default."""
    return click.option(name, default=default, show_default=True, type=kind, help=about)


def quick_flag(about: str) -> Option:
    """Return the option --quick of a case that has sizes of its own for it: a flag `quick`."""
    return click.option(
        "--quick", is_flag=True, help=f"{about}: shows that the benchmark works, not how fast."
    )


def quick(**defaults: Any) -> Option:
    """Return the option --quick, which gives a command's options these defaults."""

    def change(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
        if value:
            context.default_map = defaults

    about = "Small sizes: shows that the benchmark works."
    return click.option(
        "--quick", is_flag=True, is_eager=True, expose_value=False, callback=change, help=about
    )


def given(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given: those that are neither None nor empty."""
    return {name: value for name, value in wanted.items() if value not in (None, ())}
