"""What the commands have in common: options accepted anywhere, and loading each group when it is used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, cast

import click
from click.core import ParameterSource

from hmi.cli.session import Session


def _set(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(context: click.Context, _parameter: click.Parameter, value: Any) -> None:
        if value is not None:
            setattr(context.ensure_object(Session), name, value)

    return callback


def _set_url(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """--url as it is given; HMI_URL only where no --data is."""
    session = context.ensure_object(Session)
    if value is None:
        return
    from_environment = context.get_parameter_source(parameter.name or "") is ParameterSource.ENVIRONMENT
    if not from_environment:
        session.url, session.url_of_environment = value, False
    elif session.data is None and session.url is None:
        session.url, session.url_of_environment = value, True


def _set_data(context: click.Context, _parameter: click.Parameter, value: Any) -> None:
    session = context.ensure_object(Session)
    if value is None:
        return
    session.data = value
    if session.url_of_environment:
        session.url, session.url_of_environment = None, False


def common_options(hidden: Collection[str] = ()) -> list[click.Option]:
    """--data, --url and --key, which may stand before or after the command's name.

    Their inner names are apart, since commands have arguments named so. What is `hidden` is taken, so that
    the command can say why it is of no use there, and its help does not offer it.
    """
    options = [
        click.Option(
            ["--data", "common_data"],
            type=click.Path(file_okay=False, path_type=Path),
            expose_value=False,
            callback=_set_data,
            help="The data folder (environment: HMI_DATA; default ./hmi-data).",
        ),
        click.Option(
            ["--url", "common_url"],
            expose_value=False,
            callback=_set_url,
            envvar="HMI_URL",
            metavar="URL",
            help="Talk to a running server instead (environment: HMI_URL, where no --data is given).",
        ),
        click.Option(
            ["--key", "common_key"],
            expose_value=False,
            callback=_set("key"),
            envvar="HMI_KEY",
            metavar="KEY",
            help="The key for --url (environment: HMI_KEY, which other users cannot see).",
        ),
    ]
    for option in options:
        option.hidden = option.opts[0] in hidden
    return options


class Command(click.Command):
    """A command that takes the common options, too."""

    hidden_options: tuple[str, ...] = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += common_options(self.hidden_options)


class FolderCommand(Command):
    """One that works on a data folder or this machine, and on no server."""

    hidden_options = ("--url", "--key")


class ServerCommand(Command):
    """One that works on a server only."""

    hidden_options = ("--data",)


class FileCommand(Command):
    """One that reads the files that it is given, and nothing else."""

    hidden_options = ("--data", "--url", "--key")


class Group(click.Group):
    command_class = Command


class LazyGroup(Group):
    """Imports `hmi.cli.<module>` for a subcommand only when it is named, so that `hmi --help` is quick."""

    def __init__(self, *args: Any, lazy: dict[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy
        self.params += common_options()

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self._lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        module, attribute = self._lazy[cmd_name]
        return cast(click.Command, getattr(importlib.import_module(f"hmi.cli.{module}"), attribute))


def pass_session(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give the command its Session as first argument."""
    return click.make_pass_decorator(Session, ensure=True)(function)


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
"""For what lists or shows."""
