"""Base classes of the commands: the common options, and groups that load a command when it is named."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import click
from click.core import ParameterSource

from hmi.cli.framework.session import CliSession


def _set(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(context: click.Context, _parameter: click.Parameter, value: Any) -> None:
        if value is not None:
            setattr(context.ensure_object(CliSession), name, value)

    return callback


def _set_url(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Use --url if it is given, and HMI_URL only if --data is not."""
    session = context.ensure_object(CliSession)
    if value is None:
        return
    from_environment = context.get_parameter_source(parameter.name or "") is ParameterSource.ENVIRONMENT
    if not from_environment:
        session.url, session.url_of_environment = value, False
    elif session.data is None and session.url is None:
        session.url, session.url_of_environment = value, True


def _set_data(context: click.Context, _parameter: click.Parameter, value: Any) -> None:
    session = context.ensure_object(CliSession)
    if value is None:
        return
    session.data = value
    if session.url_of_environment:
        session.url, session.url_of_environment = None, False


def common_options(hidden: Collection[str] = ()) -> list[click.Option]:
    """Options --data, --config, --url, --key and --ca, accepted before and after a command's name.

    Their parameter names begin with `common_`, since some commands have an argument `data` or `key`. Options
    in `hidden` are left out of the help but still accepted, so that a command can explain why it refuses
    them.
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
            ["--config", "common_config"],
            type=click.Path(dir_okay=False, path_type=Path),
            expose_value=False,
            callback=_set("config"),
            metavar="FILE",
            help="A TOML file with settings (environment: HMI_CONFIG).",
        ),
        click.Option(
            ["--url", "common_url"],
            expose_value=False,
            callback=_set_url,
            envvar="HMI_URL",
            metavar="URL",
            help="Talk to a running server instead (environment: HMI_URL, ignored if --data is given).",
        ),
        click.Option(
            ["--key", "common_key"],
            expose_value=False,
            callback=_set("key"),
            envvar="HMI_KEY",
            metavar="KEY",
            help="The key for --url (environment: HMI_KEY, which other users cannot see).",
        ),
        click.Option(
            ["--ca", "common_ca"],
            type=click.Path(dir_okay=False, path_type=Path),
            expose_value=False,
            callback=_set("ca"),
            envvar="HMI_CA",
            metavar="FILE",
            help="PEM certificates of the authorities of an https URL (environment: HMI_CA).",
        ),
    ]
    for option in options:
        option.hidden = option.opts[0] in hidden
    return options


class Command(click.Command):
    """A command that also accepts the common options."""

    hidden_options: tuple[str, ...] = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += common_options(self.hidden_options)


class FolderCommand(Command):
    """A command that works on a data folder or measures this machine, never on a server."""

    hidden_options = ("--url", "--key", "--ca")


class ServerCommand(Command):
    """A command that works on a running server only."""

    hidden_options = ("--data", "--config")


class FileCommand(Command):
    """A command that reads only the files in its arguments."""

    hidden_options = ("--data", "--config", "--url", "--key", "--ca")


class CommandGroup(click.Group):
    command_class = Command


class LazyGroup(CommandGroup):
    """A group that imports `hmi.cli.<module>` only when its subcommand is used, so that the CLI starts fast.

    `lazy` maps a subcommand to its module and attribute. `elsewhere` maps names that are no subcommand to
    what a user who looks for them should do.
    """

    def __init__(
        self,
        *args: Any,
        lazy: dict[str, tuple[str, str]],
        elsewhere: Mapping[str, str] = MappingProxyType({}),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._lazy, self._elsewhere = lazy, elsewhere
        self.params += common_options()

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self._lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        module, attribute = self._lazy[cmd_name]
        return cast(click.Command, getattr(importlib.import_module(f"hmi.cli.{module}"), attribute))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known, name = self.list_commands(ctx), args[0]
        if name not in known and not name.startswith("-") and not ctx.resilient_parsing:
            near = get_close_matches(name, known)
            guess = f"did you mean {' or '.join(near)}?" if near else ""
            hint = self._elsewhere.get(name, guess)
            ctx.fail(f"there is no command {name!r}" + (f": {hint}" if hint else ""))
        return super().resolve_command(ctx, args)


def pass_session(function: Callable[..., Any]) -> Callable[..., Any]:
    """Pass the Session to the command as its first argument."""
    return click.make_pass_decorator(CliSession, ensure=True)(function)


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
"""The option of commands that list or show something."""
