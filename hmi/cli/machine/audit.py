"""`hmi audit`: the log of changes, administrators' calls and refused callers."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from hmi.cli.framework.base import CommandGroup, FolderCommand, as_json, pass_session
from hmi.cli.framework.output import notes, print_json, print_table
from hmi.cli.framework.session import Calls, CliSession
from hmi.errors import InvalidInput

COLUMNS = {"n": "N", "at": "AT", "event": "EVENT", "who": "WHO", "key": "KEY", "tenant": "TENANT"}
COLUMNS |= {"call": "CALL", "object": "OBJECT", "outcome": "OUTCOME", "address": "ADDRESS"}
POLL_S = 1.0
"""Interval at which `hmi audit follow` looks for new lines."""
_SPAN = re.compile(r"(\d{1,9})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class Since(click.ParamType):  # type: ignore[type-arg]  # click 8.1 has no argument there
    """A time with its offset, or a span before now, such as 90s, 15m, 24h or 7d."""

    name = "time or span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        span = _SPAN.fullmatch(value)
        try:
            if span is not None:
                found = datetime.now(UTC) - timedelta(**{_UNITS[span[2]]: int(span[1])})
            else:
                found = datetime.fromisoformat(value)
        except (ValueError, OverflowError):
            found = datetime.min
        if found.tzinfo is None:
            self.fail(f"{value!r} is not a time: give one like 2026-01-31T12:00:00Z, or a span like 24h")
        return found.isoformat()


since_option = click.option(
    "--since", type=Since(), default="24h", show_default=True, metavar="TIME", help="A time, or a span: 7d."
)
tenant_option = click.option("--tenant", metavar="NAME", help="Lines about this tenant only.")


@click.group(cls=CommandGroup)
def audit() -> None:
    """The audit log: changes, administrators' calls, refused callers."""


@audit.command("list")
@since_option
@tenant_option
@click.option("--all", "everything", is_flag=True, help="Show also that changes began.")
@as_json
@pass_session
def list_(session: CliSession, since: str, tenant: str | None, everything: bool, as_json: bool) -> None:
    """Print the lines of the audit log, oldest first.

    A change that began and has no outcome is printed in any case: the server was killed meanwhile.
    """
    with session.calls() as calls:
        lines = [line for page, _ in _pages(calls, since, tenant) for line in page]
    ended = {line["begun"] for line in lines if line["begun"] is not None}
    shown = lines if everything else [line for line in lines if line["n"] not in ended]
    if as_json:
        print_json(shown)
    else:
        print_table(shown, COLUMNS, "no lines: see --since")


@audit.command()
@since_option
@tenant_option
@click.option("--seconds", type=float, help="End after this time.  [default: never]")
@as_json
@pass_session
def follow(session: CliSession, since: str, tenant: str | None, seconds: float | None, as_json: bool) -> None:
    """Print the lines of the audit log, and new ones as they come, until Ctrl-C."""
    until = None if seconds is None else time.monotonic() + seconds
    position = None
    with session.calls(server=True) as calls:
        while True:
            for page, reached in _pages(calls, since, tenant, position):
                position = reached
                for line in page:
                    _print_line(line, as_json)
            if until is not None and time.monotonic() >= until:
                return
            time.sleep(POLL_S if until is None else min(POLL_S, max(0.0, until - time.monotonic())))


@audit.command(cls=FolderCommand)
@click.option(
    "--head",
    "heads",
    multiple=True,
    metavar="N:HASH",
    help="A line's number and hash that were noted earlier, outside this machine. Repeatable.",
)
@as_json
@pass_session
def verify(session: CliSession, heads: tuple[str, ...], as_json: bool) -> int:
    """Check that no line was changed, removed or inserted since it was written.

    The exit code is 1 if there is a sign of it. Note the last line's number and hash elsewhere: who may write
    to the data folder could write the whole log anew, and --head shows that.
    """
    from hmi.stores.audit.verifying import verify as check

    session.not_remote("it reads the files of the log: leave --url out and give --data")
    session.require_data_folder(creates=False)
    report = check(_folder(session), dict(map(_head, heads)))
    if as_json:
        print_json(vars(report))
        return 1 if report.faults else 0
    for text in report.notes:
        notes.print(f"note: {text}", markup=False, soft_wrap=True)
    for text in report.faults:
        notes.print(f"FAULT: {text}", markup=False, soft_wrap=True)
    if not report.faults:
        click.echo(f"{report.lines} lines, the chain is whole; the last is {report.last}:{report.hash}")
    return 1 if report.faults else 0


def _folder(session: CliSession) -> Path:
    from hmi.stores.layout import Layout

    return Layout(session.settings().data).audit


def _pages(
    calls: Calls, since: str, tenant: str | None, position: str | None = None
) -> Iterator[tuple[list[dict[str, Any]], str | None]]:
    """Yield pages of lines up to the end of the log, each with the position after it."""
    more = True
    while more:
        query = {"since": since, "limit": "1000"} | ({} if tenant is None else {"tenant": tenant})
        query |= {} if position is None else {"after": position}
        page = calls.request("GET", "/manage/audit", query=query)
        position, more = page["position"], page["more"]
        yield page["lines"], position


def _print_line(line: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json({name: value for name, value in line.items() if value is not None}, compact=True)
        return
    words = [line["at"], line["event"], line["who"], line["call"], line["outcome"], line["tenant"]]
    objects = [f"{name}={value}" for name, value in (line["object"] or {}).items()]
    click.echo(" ".join(str(word) for word in (*words, *objects, line["address"]) if word is not None))


def _head(text: str) -> tuple[int, str]:
    number, _, found = text.partition(":")
    if not number.isdecimal() or not re.fullmatch(r"[0-9a-f]{64}", found):
        raise InvalidInput(f"--head {text!r} is not N:HASH: copy it from an earlier 'hmi audit verify'")
    return int(number), found
