"""`hmi settings`: prints every setting with its value, and writes docs/settings.md."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from hmi.cli.framework.base import FolderCommand, as_json, pass_session
from hmi.cli.framework.output import print_json, print_table
from hmi.cli.framework.session import CliSession
from hmi.cli.machine.config import plain
from hmi.config.described import amount, settings

PAGE: Final = """# Settings

<!-- Generated from hmi/config/settings.py by `python -m hmi settings --markdown --out docs/settings.md` -->

Each setting has one name in four places. The first that gives a value wins: a flag of `hmi serve`
(`--max-inputs 64`), a variable of the environment (`HMI_MAX_INPUTS=64`), the TOML file that `--config FILE`
or `HMI_CONFIG` names (`max_inputs = 64`), the default. `--data` is an option of every command. `hmi config
show` prints each setting with its value and its source, `hmi config check` checks them all, and `hmi config
init` writes a file with comments. [Configuration](operations/configuration.md) explains them.

A size is a number of bytes. It may end in K, M, G or T, which are powers of 1024: `50M`, `50MB` and `50MiB`
are the same. An invalid value is an error at the start, which names the setting and its place.

| name in the file | variable | default | unit | range | what it does |
|---|---|---|---|---|---|
"""
CLIENT: Final = """
These are read by commands that call a server. The server does not use them:

| variable | what it does |
|---|---|
| `HMI_URL` | the server's address, as `--url` gives it |
| `HMI_KEY` | the key to send, as `--key` gives it; other users can see an option, but not a variable |
| `HMI_CA` | a PEM file with the authorities that may sign the server's certificate, as `--ca` gives it |
| `HMI_CLIENT_CERT` | a PEM file with a certificate and its key, for servers that ask for one |
"""


def markdown() -> str:
    """Return the text of docs/settings.md."""
    rows = (
        f"| `{s.name}` | `{s.variable}` | {s.default} | {s.unit} | {s.range} | {s.about} |\n"
        for s in settings()
    )
    return PAGE + "".join(rows) + CLIENT


@click.command("settings", cls=FolderCommand)
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the page docs/settings.md instead.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="With --markdown: write the page to this file.",
)
@as_json
@pass_session
def show(session: CliSession, as_markdown: bool, out: Path | None, as_json: bool) -> None:
    """Show every setting: its variable, its value and what it does."""
    session.not_remote("a server's settings are those of its own process: leave --url out")
    if as_markdown:
        click.echo(markdown(), nl=False) if out is None else out.write_text(markdown(), encoding="utf-8")
        return
    now = session.settings()
    rows = [
        {
            "variable": s.variable,
            "value": amount(getattr(now, s.name), s.unit),
            "default": s.default,
            "unit": s.unit,
            "about": s.about,
        }
        for s in settings()
    ]
    if as_json:
        print_json(
            [{**row, "value": plain(getattr(now, s.name))} for row, s in zip(rows, settings(), strict=True)]
        )
        return
    columns = {"variable": "VARIABLE", "value": "VALUE", "default": "DEFAULT", "about": "WHAT IT DOES"}
    print_table(rows, columns, "no settings")
