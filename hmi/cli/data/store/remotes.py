"""`hmi store push`, `pull` and `remote`: domains in object storage, for other data folders."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

import plot_store
from hmi.cli.data.store.arguments import domain_of, opened
from hmi.cli.data.store.bars import byte_bar
from hmi.cli.framework.base import CommandGroup, FolderCommand, as_json, pass_session
from hmi.cli.framework.options import Number, confirm, yes_option
from hmi.cli.framework.output import notes, print_done, print_fields, print_json, print_table, size
from hmi.cli.framework.session import CliSession
from hmi.core import DomainId
from hmi.stores.plot.plots import plot_errors
from hmi.stores.plot.sharing import plots_in_use

if TYPE_CHECKING:
    from plot_store import Remote, Transfer

_COMMANDS: Final = (
    (re.compile(r"again=True"), "--again"),
    (re.compile(r"expect='(v[0-9a-f]{32})'"), r"--expect \1"),
    (re.compile(r"collect it with keep_versions=1"), "run 'hmi store gc --keep-versions 1'"),
    (re.compile(r"collect again with take_over=True"), "'hmi store remote gc --take-over PLACE'"),
)
"""Pairs of a cure in Python, as an error of the store names it, and the same cure on the command line."""
expect_option = click.option(
    "--expect", metavar="VERSION", help="Only if PLACE has this version of the domain now."
)
place_argument = click.argument("place")


@click.command(cls=FolderCommand)
@click.argument("domain", metavar="ROOT/BRANCH")
@place_argument
@click.option("--again", is_flag=True, help="Send everything, also what is there, to repair PLACE.")
@expect_option
@as_json
@pass_session
def push(
    session: CliSession, domain: str, place: str, again: bool, expect: str | None, as_json: bool
) -> None:
    """Send a domain's PLOT, and the PLOTs that it builds on, to PLACE: a folder, or s3://bucket/prefix.

    Only what PLACE lacks is sent. Lower layers that were pretrained further go along. The root's model does
    not. Without --expect, PLACE must be at a version that this data folder has pushed or pulled.
    """
    with opened(session) as local, _said():
        manager = local.services.manager
        name = domain_of(manager, domain)
        with byte_bar(f"pushing {name}") as show:
            done = manager.push_domain(name, place, show, expect=expect, again=again)
    _print_moved(name, place, done, f"at {place}", [], as_json)


@click.command(cls=FolderCommand)
@click.argument("domain", metavar="ROOT/BRANCH")
@place_argument
@click.option("--again", is_flag=True, help="Also read what is here, and replace what is damaged.")
@as_json
@pass_session
def pull(session: CliSession, domain: str, place: str, again: bool, as_json: bool) -> None:
    """Fetch a domain's PLOT, and the PLOTs that it builds on, from PLACE, where 'hmi store push' put them.

    Only what is not here is fetched. A running server uses the new version at once. Models stay on theirs.
    """
    with opened(session) as local, _said():
        manager = local.services.manager
        name = str(DomainId.parse(domain))
        with byte_bar(f"pulling {name}") as show:
            done, lacking = manager.pull_domain(name, place, show, again=again)
    _print_moved(name, place, done, "here", lacking, as_json)
    if lacking:
        notes.print(
            f"{place} lacks the lower layers of {', '.join(lacking)}. Models answer; exact answers, updates "
            "and growth need them: push it again from the data folder that has them, then pull it again"
        )


@click.group(cls=CommandGroup)
def remote() -> None:
    """List and clean up what 'hmi store push' put into object storage."""


@remote.command("list", cls=FolderCommand)
@place_argument
@as_json
@pass_session
def list_(session: CliSession, place: str, as_json: bool) -> None:
    """List the domains at PLACE, each with its version."""
    with _at(session, place) as found:
        rows = [{"domain": ref, "version": version} for ref, version in sorted(found.refs().items())]
    if as_json:
        print_json(rows)
        return
    print_table(rows, {"domain": "DOMAIN", "version": "VERSION"}, f"no domains at {place}")


@remote.command(cls=FolderCommand)
@click.argument("domain", metavar="ROOT/BRANCH")
@place_argument
@expect_option
@yes_option
@as_json
@pass_session
def delete(
    session: CliSession, domain: str, place: str, expect: str | None, yes: bool, as_json: bool
) -> None:
    """Remove a domain from PLACE. Data folders that have it keep it. 'gc' frees the bytes."""
    name = str(DomainId.parse(domain))
    with _at(session, place) as found:
        confirm(f"the domain {name} at {place}", yes, found.refs)
        version = found.delete(name, expect=expect)
    text = f"{name} is not at {place} any more; 'hmi store remote gc' frees its bytes"
    print_done({"domain": name, "place": place, "version": version}, text, as_json)


@remote.command(cls=FolderCommand)
@place_argument
@click.option(
    "--age-hours",
    type=Number(0, 87_600),
    default=24.0,
    show_default=True,
    help="Remove only what is older, and take pushes that began earlier for dead.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@click.option("--take-over", is_flag=True, help="Another gc has not ended, and its process is dead.")
@as_json
@pass_session
def gc(
    session: CliSession, place: str, age_hours: float, dry_run: bool, take_over: bool, as_json: bool
) -> None:
    """Remove what no domain at PLACE needs. Pushes are refused meanwhile.

    Each domain needs its version, the seven pushed before it, and what these build on. If PLACE is the
    'plots' of a bucket that servers share, the versions that their models use stay, too.
    """
    with _at(session, place) as found:
        keep = plots_in_use(place)
        report = found.collect(age_s=age_hours * 3600, dry_run=dry_run, take_over=take_over, keep=keep)
    if as_json:
        print_json(asdict(report))
        return
    print_fields({"objects": len(report.objects), "bytes": size(report.bytes), "pushes": report.pushes})
    if dry_run:
        notes.print("nothing was removed: leave --dry-run out to remove it")


def _print_moved(
    domain: str, place: str, done: Transfer, where: str, lacking: list[str], as_json: bool
) -> None:
    found: dict[str, Any] = {
        "domain": domain,
        "place": place,
        "version": done.version.id,
        "segments": done.segments,
        "lower_layers": list(done.attachments),
        "bytes": done.bytes,
        "lacking": lacking,
    }
    new = [f"{done.segments} segments"] if done.segments else []
    new += [f"lower layers {name}" for name in done.attachments]
    what = f"{' and '.join(new)} moved ({size(done.bytes)})" if new else "nothing had to move"
    print_done(found, f"{domain} is at version {done.version.id} {where}: {what}", as_json)


@contextmanager
def _at(session: CliSession, place: str) -> Iterator[Remote]:
    """Open a place. Raises HmiErrors."""
    session.not_remote("it works on the place itself: leave --url out")
    with _said():
        yield plot_store.Remote(place)


@contextmanager
def _said() -> Iterator[None]:
    """Raise the store's errors as HmiErrors, with commands as cures."""
    with plot_errors():
        try:
            yield
        except plot_store.PlotStoreError as error:
            said = str(error)
            for python, command in _COMMANDS:
                said = python.sub(command, said)
            raise type(error)(said) from error
