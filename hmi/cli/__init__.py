"""The command line: `hmi`. Works on a data folder, or with --url on a running server."""

from __future__ import annotations

import logging
import sys

import click

import hmi
from hmi.cli.base import LazyGroup
from hmi.errors import HmiError
from hmi.telemetry import logs

COMMANDS = {
    "serve": ("serve", "serve"),
    "reference": ("reference", "reference"),
    "root": ("roots", "root"),
    "domain": ("domains", "domain"),
    "tenant": ("tenants", "tenant"),
    "key": ("keys", "key"),
    "backup": ("backups", "backup"),
    "restore": ("backups", "restore"),
    "model": ("models", "model"),
    "job": ("jobs", "job"),
    "file": ("files", "file"),
    "store": ("store", "store"),
    "infer": ("infer", "infer"),
    "config": ("config", "config"),
    "doctor": ("doctor", "doctor"),
    "openapi": ("serve", "openapi"),
    "settings": ("settings", "show"),
    "check": ("check", "check"),
    "profile": ("profile", "profile"),
    "top": ("top", "top"),
    "audit": ("audit", "audit"),
}


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(hmi.__version__, prog_name="hmi")
def cli() -> None:
    """Serve thousands of small text models, one or more for each tenant, from one machine."""


def main(arguments: list[str] | None = None, command: click.Command = cli, name: str = "hmi") -> None:
    """Run a command and exit. `name` is what its usage calls it.

    Exit codes: 0 done, 1 an error, 2 wrong usage, 3 an update was held back, 130 interrupted. None of these
    prints a traceback.
    """
    if not logging.getLogger().handlers:
        logs.configure()
    try:
        code = command.main(args=arguments, prog_name=name, standalone_mode=False)
    except click.Abort:
        _say("interrupted", "yellow")
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except HmiError as error:
        _say(f"error: {error.message}", "red")
        sys.exit(1)
    except BrokenPipeError:
        # The reader closed the pipe. Without stdout the interpreter does not fail to flush it at exit.
        sys.stdout = None
        sys.exit(0)
    except Exception as error:
        sys.exit(_explained(error))
    sys.exit(code if isinstance(code, int) else 0)


def _explained(error: Exception) -> int:
    """Print an error of the stores or the disk on one line and return the exit code.

    Any other error is our own bug and is raised again with its traceback.
    """
    from hmi.api.errors import known

    explained = known(error)
    if explained is not None:
        _say(f"error: {explained.message}", "red")
    elif isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        _say(f"error: {where}{error.strerror}: check the path and who may use it", "red")
    else:
        raise error
    return 1


def _say(text: str, colour: str) -> None:
    click.secho(" ".join(text.split()), fg=colour, err=True)
