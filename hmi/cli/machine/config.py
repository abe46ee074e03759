"""`hmi config`: shows the settings and their sources, checks them and the machine, and writes a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hmi.cli.framework.base import CommandGroup, FolderCommand, as_json, pass_session
from hmi.cli.framework.output import notes, print_done, print_json, print_table
from hmi.cli.framework.session import CliSession
from hmi.config.described import amount, commented, settings
from hmi.config.sources import gather, unknown_variables
from hmi.errors import Conflict


class _Folder(CommandGroup):
    command_class = FolderCommand


@click.group(cls=_Folder)
def config() -> None:
    """Settings: where they come from, and whether they fit this machine."""


@config.command()
@as_json
@pass_session
def show(session: CliSession, as_json: bool) -> None:
    """Print every setting with its value and where it came from."""
    session.not_remote("a server's settings are those of its own process: leave --url out")
    found = session.configuration()
    say_warnings(unknown_variables())
    rows = [
        {
            "setting": setting.name,
            "value": getattr(found.settings, setting.name),
            "default": setting.default,
            "source": found.sources[setting.name],
            "unit": setting.unit,
        }
        for setting in settings()
    ]
    if as_json:
        print_json([{**row, "value": plain(row["value"])} for row in rows])
        return
    shown = [{**row, "value": amount(row["value"], str(row["unit"]))} for row in rows]
    print_table(shown, {"setting": "SETTING", "value": "VALUE", "source": "SOURCE"}, "no settings")


@config.command()
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@as_json
@pass_session
def check(session: CliSession, file: Path | None, as_json: bool) -> int:
    """Check the settings and whether this machine can run a server with them. Exits with 1 if it cannot.

    FILE is read instead of the one that --config or HMI_CONFIG names.
    """
    session.not_remote("a server's settings are those of its own process: leave --url out")
    from hmi.doctor.machine import settings_findings

    gathered = gather(None, file or session.config, session.flags())
    problems = [
        {"setting": error.details.get("field"), "problem": error.message} for error in gathered.problems
    ]
    if not problems:
        told = [f for f in settings_findings(session.configured(file)) if f.level != "ok"]
        problems = [{"setting": f.check, "problem": f.text} for f in told if f.level == "problem"]
        warnings = [f.text for f in told if f.level == "warning"] + unknown_variables()
    else:
        warnings = unknown_variables()
    if as_json:
        print_json({"sound": not problems, "problems": problems, "warnings": warnings})
        return int(bool(problems))
    say_warnings(warnings)
    for problem in problems:
        notes.print(f"error: {problem['problem']}", markup=False, soft_wrap=True, style="red")
    if not problems:
        notes.print("the settings are sound, and this machine can run a server with them")
    return int(bool(problems))


@config.command()
@click.argument("file", default="hmi.toml", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@as_json
@pass_session
def init(session: CliSession, file: Path, force: bool, as_json: bool) -> None:
    """Write FILE (default hmi.toml) with every setting at its default, commented out and explained."""
    session.not_remote("it writes a file on this machine: leave --url out")
    try:
        with file.open("w" if force else "x", encoding="utf-8") as target:
            target.write(commented())
    except FileExistsError:
        raise Conflict(f"{file} exists: name another, or replace it with --force") from None
    print_done({"file": str(file)}, f"{file} is written: 'hmi serve --config {file}' reads it", as_json)


def plain(value: Any) -> Any:
    """Return a setting's value as JSON."""
    return str(value) if isinstance(value, Path) else value


def say_warnings(warnings: list[str]) -> None:
    """Print warnings on stderr."""
    for warning in warnings:
        notes.print(f"warning: {warning}", markup=False, soft_wrap=True, style="yellow")
