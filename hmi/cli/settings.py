"""`hmi settings`: prints every setting with its value, and writes docs/settings.md from the same source."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import click

from hmi.cli.base import FolderCommand, as_json, pass_session
from hmi.cli.output import print_json, print_table, size
from hmi.cli.session import Session
from hmi.config import PREFIX, Settings, bounds

UNITS: Final = {"bytes": "bytes", "tokens": "tokens", "s": "seconds", "ms": "milliseconds"}
"""Of a setting by the last word of its name."""
ENDLESS: Final = 1 << 50
"""A bound that only stops nonsense is not worth telling."""
PAGE: Final = """# Settings

<!-- Made by `python -m hmi settings --markdown --out docs/settings.md`: change hmi/config.py. -->

A server and every command on a data folder read these from the environment. `hmi settings` shows their
values. An option of a command (`--data`, and `--host`, `--port`, `--job-workers`, `--streams`, `--pool-bytes`
of `hmi serve`) wins over the environment. A size is a number of bytes. It may end in K, M, G or T, which
count in 1024s: `50M`, `50MB` and `50MiB` are the same. An impossible value is refused at the start, and the
error names it.

| variable | default | unit | range | what it does |
|---|---|---|---|---|
"""
CLIENT: Final = """
A command that talks to a server reads two more, which the server does not use:

| variable | what it does |
|---|---|
| `HMI_URL` | the server's address, as `--url` gives it |
| `HMI_KEY` | the key to send, as `--key` gives it; unlike an option, other users cannot see it |
"""


@dataclass(frozen=True)
class Setting:
    """One setting as the class tells of it."""

    name: str
    default: str
    unit: str
    range: str
    about: str

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()


def settings() -> list[Setting]:
    """All of them, in the class's order."""
    about = _texts()
    found = []
    for field in fields(Settings):
        unit = UNITS.get(field.name.rpartition("_")[2], "") if isinstance(field.default, int | float) else ""
        shown = _range(field.name, unit) if isinstance(field.default, int | float) else ""
        found.append(
            Setting(field.name, _amount(field.default, unit), unit, shown, about.get(field.name, ""))
        )
    return found


def markdown() -> str:
    """The text of docs/settings.md."""
    rows = (f"| `{s.variable}` | {s.default} | {s.unit} | {s.range} | {s.about} |\n" for s in settings())
    return PAGE + "".join(rows) + CLIENT


def _texts() -> dict[str, str]:
    """The text under each field, in one line. Python keeps none of them, so the source is read."""
    body = ast.parse(inspect.getsource(Settings)).body[0]
    assert isinstance(body, ast.ClassDef)
    texts = {}
    for field, after in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            texts[field.target.id] = " ".join(str(after.value.value).split())
    return texts


def _range(name: str, unit: str) -> str:
    least, most = bounds(name)
    return (
        f"{_amount(least, unit)} to {_amount(most, unit)}"
        if most < ENDLESS
        else f"from {_amount(least, unit)}"
    )


def _amount(value: Any, unit: str) -> str:
    if unit == "bytes" and value and value % 1024 == 0:
        return size(value).replace(".0 ", " ")
    return f"{value:,}" if isinstance(value, int) and value >= 1_000_000 else str(value)


@click.command("settings", cls=FolderCommand)
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the page docs/settings.md.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="With --markdown: write it there."
)
@as_json
@pass_session
def show(session: Session, as_markdown: bool, out: Path | None, as_json: bool) -> None:
    """Every setting: its variable, what it is now, and what it does."""
    session.not_remote("a server's settings are those of its own process: leave --url out")
    if as_markdown:
        click.echo(markdown(), nl=False) if out is None else out.write_text(markdown(), encoding="utf-8")
        return
    now = session.settings()
    rows = [
        {
            "variable": s.variable,
            "value": _amount(getattr(now, s.name), s.unit),
            "default": s.default,
            "unit": s.unit,
            "about": s.about,
        }
        for s in settings()
    ]
    if as_json:
        print_json(
            [{**row, "value": _plain(getattr(now, s.name))} for row, s in zip(rows, settings(), strict=True)]
        )
        return
    columns = {"variable": "VARIABLE", "value": "VALUE", "default": "DEFAULT", "about": "WHAT IT DOES"}
    print_table(rows, columns, "no settings")


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value
