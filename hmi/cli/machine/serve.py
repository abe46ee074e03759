"""`hmi serve` and `hmi openapi`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from hmi.cli.framework.base import Command, FolderCommand, as_json, pass_session
from hmi.cli.framework.session import CliSession
from hmi.cli.machine.config import say_warnings
from hmi.config.described import settings
from hmi.config.settings import DEFAULTS, checked
from hmi.config.sources import unknown_variables
from hmi.config.values import flag, from_text
from hmi.errors import InvalidInput

METAVARS: Final = {
    "bytes": "SIZE",
    "tokens": "TOKENS",
    "seconds": "SECONDS",
    "milliseconds": "MS",
    **dict.fromkeys(("bytes a second", "requests a second", "tokens a second"), "RATE"),
}
"""The help's name of a value, by its unit."""


class _Setting(click.ParamType):  # type: ignore[type-arg]  # click 8.1 has no argument there
    """A value of the setting `name`, in the form that the environment takes."""

    def __init__(self, setting: str) -> None:
        self._setting = setting
        self.name = setting

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return checked(self._setting, from_text(self._setting, value, flag(self._setting)))
        except InvalidInput as error:
            self.fail(error.message, param, ctx)


def _flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add a flag for each setting but `data`, which every command has."""
    for setting in reversed(settings()):
        if setting.name == "data":
            continue
        known: dict[str, Any] = {
            "type": _Setting(setting.name),
            "metavar": METAVARS.get(setting.unit, "VALUE"),
        }
        name = flag(setting.name)
        if isinstance(DEFAULTS[setting.name], bool):
            name, known = f"{name}/--no-{name[2:]}", {"default": None}
        default = f" (default {setting.default})" if setting.default else ""
        function = click.option(name, setting.name, help=setting.summary[:-1] + default + ".", **known)(
            function
        )
    return function


@click.command(cls=FolderCommand)
@_flags
@pass_session
def serve(session: CliSession, **given: Any) -> None:
    """Serve the data folder over HTTP until SIGTERM or Ctrl-C.

    Each option is a setting; its variable and its name in the file of --config are in docs/settings.md.
    """
    session.not_remote("a server runs there already: leave --url out")
    from hmi.api import serve as run

    session.overrides = {name: value for name, value in given.items() if value is not None}
    session.require_data_folder(creates=True)
    say_warnings(unknown_variables())
    run(session.settings())


@click.command(cls=Command)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the document to this file."
)
@as_json
@pass_session
def openapi(session: CliSession, out: Path | None, as_json: bool) -> None:
    """Print the OpenAPI 3.1 document of the HTTP API, as JSON: this release's, or with --url a server's."""
    text = _document(session)
    if out is None:
        click.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")


def _document(session: CliSession) -> str:
    if session.remote:
        with session.calls() as calls:
            return json.dumps(calls.request("GET", "/openapi.json"), indent=1) + "\n"
    from hmi.api.routes.table import openapi_text

    return openapi_text()
