"""The command line: `hmi`. Works on a data folder, or with --url on a running server."""

from __future__ import annotations

import logging
import sys

import click

import hmi
from hmi.cli.framework.base import LazyGroup
from hmi.errors import HmiError
from hmi.telemetry import logs

COMMANDS = {
    "serve": ("machine.serve", "serve"),
    "reference": ("machine.reference", "reference"),
    "root": ("data.roots", "root"),
    "domain": ("data.domains", "domain"),
    "tenant": ("tenants.tenants", "tenant"),
    "key": ("tenants.keys", "key"),
    "backup": ("data.backups", "backup"),
    "restore": ("data.backups", "restore"),
    "model": ("models.models", "model"),
    "job": ("data.jobs", "job"),
    "file": ("data.files", "file"),
    "store": ("data.store", "store"),
    "infer": ("models.infer", "infer"),
    "generate": ("models.generate", "generate"),
    "config": ("machine.config", "config"),
    "doctor": ("machine.doctor", "doctor"),
    "openapi": ("machine.serve", "openapi"),
    "settings": ("machine.settings", "show"),
    "check": ("models.check", "check"),
    "profile": ("machine.profile", "profile"),
    "top": ("top.top", "top"),
    "cluster": ("cluster.cluster", "cluster"),
    "audit": ("machine.audit", "audit"),
}

ELSEWHERE = {"bench": "benchmarks run from a clone of the repository, by 'python -m bench'"}


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    elsewhere=ELSEWHERE,
    context_settings={"help_option_names": ["-h", "--help"]},
)
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
    from hmi.api.protocols.errors import known

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
