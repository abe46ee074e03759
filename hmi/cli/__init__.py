"""The command line: `hmi`. Works on a data folder, or with --url on a running server."""

from __future__ import annotations

import logging
import sys

import click

import hmi
from hmi.cli.base import LazyGroup
from hmi.errors import HmiError

COMMANDS = {
    "serve": ("serve", "serve"),
    "root": ("roots", "root"),
    "domain": ("domains", "domain"),
    "tenant": ("tenants", "tenant"),
    "key": ("tenants", "key"),
    "model": ("models", "model"),
    "job": ("jobs", "job"),
    "store": ("store", "store"),
    "infer": ("infer", "infer"),
    "openapi": ("serve", "openapi"),
    "settings": ("settings", "show"),
    "bench": ("bench", "bench"),
    "check": ("check", "check"),
}


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(hmi.__version__, prog_name="hmi")
def cli() -> None:
    """A language model of its own for each of thousands of tenants, served from one machine."""


def main(arguments: list[str] | None = None) -> None:
    """Run a command and exit: 0 done, 1 an error, 2 wrong usage, 3 an update was held back, 130 interrupted.

    Never a traceback for these.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        code = cli.main(args=arguments, prog_name="hmi", standalone_mode=False)
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
        # The reader of a pipe has seen enough; keep the interpreter from complaining at exit.
        sys.stdout = None
        sys.exit(0)
    except Exception as error:
        sys.exit(_explained(error))
    sys.exit(code if isinstance(code, int) else 0)


def _explained(error: Exception) -> int:
    """Tell an error of the stores or the disk as one line; anything else is our bug and keeps its
    traceback."""
    from hmi.api.errors import known

    told = known(error)
    if told is not None:
        _say(f"error: {told.message}", "red")
    elif isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        _say(f"error: {where}{error.strerror}: check the path and who may use it", "red")
    else:
        raise error
    return 1


def _say(text: str, colour: str) -> None:
    click.secho(" ".join(text.split()), fg=colour, err=True)
