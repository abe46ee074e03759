"""`hmi backup` and `hmi restore`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from hmi.cli.data.store.bars import byte_bar
from hmi.cli.framework.base import CommandGroup, FolderCommand, as_json, pass_session
from hmi.cli.framework.options import Whole
from hmi.cli.framework.output import notes, print_done, print_json, print_table, size
from hmi.cli.framework.progress import run_job, show_end
from hmi.cli.framework.session import CliSession
from hmi.errors import Damaged, InvalidInput

if TYPE_CHECKING:
    from hmi.backup.manifest import Manifest
    from hmi.backup.target import Target

OWN_PLACE = "the server backs up to its own place: leave TARGET out, and see HMI_BACKUP_LOCATION"
folder_option = click.option("--folder", help="A folder of the configured place.")
backup_option = click.option("--backup", "name", metavar="ID", help="The backup.  [default: the newest]")


@click.group(cls=CommandGroup)
def backup() -> None:
    """Back up the whole data folder, while a server runs."""


@backup.command()
@click.argument("target", required=False)
@folder_option
@click.option("--reread", is_flag=True, help="Read every file again, also those that did not change.")
@as_json
@pass_session
def create(session: CliSession, target: str | None, folder: str | None, reread: bool, as_json: bool) -> None:
    """Make a backup at TARGET, a folder or a URL (s3://bucket/path; needs the package of its protocol).

    Without TARGET, it is made at the configured place (HMI_BACKUP_LOCATION), with --url by the server. Files
    that TARGET holds already are not copied again.
    """
    if session.remote:
        _refuse(target, OWN_PLACE)
        with session.calls() as calls:
            body = {"reread": reread, **({"folder": folder} if folder else {})}
            job = calls.request("POST", "/manage/backups", body)["job"]
            show_end(run_job(session, calls, job), as_json)
        return
    session.require_data_folder(creates=False)
    from hmi.backup.create import create as make

    settings = session.settings()
    with _stores(session) as (registry, plots), byte_bar("backing up") as show:
        made = make(settings.data, registry, plots, _target(session, target, folder), show, reread=reread)
    text = (
        f"backup {made.backup}: {made.files} files, {size(made.bytes)}; {size(made.new_bytes)} were new, in "
        f"{made.seconds:.1f} s"
    )
    print_done(_view(made), text, as_json)
    for remark in made.remarks:
        notes.print(f"the data folder had lost something: {remark}", markup=False, soft_wrap=True)


@backup.command("list")
@click.argument("target", required=False)
@folder_option
@as_json
@pass_session
def list_(session: CliSession, target: str | None, folder: str | None, as_json: bool) -> None:
    """List the backups at TARGET, oldest first; without TARGET those at the configured place."""
    if session.remote:
        _refuse(target, OWN_PLACE)
        with session.calls() as calls:
            query = {"folder": folder} if folder else None
            found = calls.request("GET", "/manage/backups", query=query)["backups"]
    else:
        from hmi.backup.collection import entries

        found = [
            {"backup": entry.backup, "damage": entry.damage}
            if entry.manifest is None
            else _view(entry.manifest)
            for entry in entries(_target(session, target, folder))
        ]
    if as_json:
        print_json(found)
        return
    rows = [{**row, "size": _sized(row, "bytes"), "new": _sized(row, "new_bytes")} for row in found]
    columns = {
        "backup": "BACKUP",
        "created": "CREATED",
        "files": "FILES",
        "size": "SIZE",
        "new": "NEW",
        "damage": "DAMAGE",
    }
    print_table(rows, columns, "no backups there yet: 'hmi backup create TARGET' makes one")


@backup.command(cls=FolderCommand)
@click.argument("target")
@backup_option
@as_json
@pass_session
def verify(session: CliSession, target: str, name: str | None, as_json: bool) -> None:
    """Read every byte of a backup at TARGET, and compare it with its hash. Exit code 1: it is damaged."""
    session.not_remote("it reads the backup itself: leave --url out")
    from hmi.backup.collection import newest
    from hmi.backup.collection import verify as check

    place = _target(session, target, None)
    chosen = name or newest(place)
    with byte_bar(f"checking {chosen}") as show:
        problems = check(place, chosen, show)
    if as_json:
        print_json({"backup": chosen, "problems": list(problems)})
    for problem in problems:
        notes.print(problem, markup=False, soft_wrap=True)
    if problems:
        raise Damaged(f"backup {chosen} has {len(problems)} damaged files: make a new one, with --reread")
    notes.print(f"backup {chosen} is sound")


@backup.command(cls=FolderCommand)
@click.argument("target")
@click.option("--keep", type=Whole(1, 1 << 20), required=True, help="The number of newest backups that stay.")
@as_json
@pass_session
def prune(session: CliSession, target: str, keep: int, as_json: bool) -> None:
    """Remove all but the newest backups at TARGET, and what only they needed."""
    session.not_remote("it changes the backups themselves: leave --url out")
    from hmi.backup.collection import prune as remove

    gone = remove(_target(session, target, None), keep=keep)
    found = {"removed": list(gone.backups), "objects": gone.objects, "bytes": gone.bytes}
    print_done(found, f"{len(gone.backups)} backups removed, {size(gone.bytes)} freed", as_json)


@click.command(cls=FolderCommand)
@click.argument("source")
@backup_option
@as_json
@pass_session
def restore(session: CliSession, source: str, name: str | None, as_json: bool) -> None:
    """Restore a backup at SOURCE as the data folder --data, which must not exist yet, or be empty.

    Every file is checked against its hash before the folder appears. Jobs that ran wait in the queue.
    The same command continues an interrupted restore.
    """
    session.not_remote("it makes a data folder on this machine: leave --url out and give --data")
    from hmi.backup.collection import newest
    from hmi.backup.restore import restore as bring_back

    place, data = _target(session, source, None), session.settings().data
    chosen = name or newest(place)
    with byte_bar(f"restoring {chosen}") as show:
        made = bring_back(place, chosen, data, show)
    text = f"{data} is as backup {chosen} has it ({made.files} files, {size(made.bytes)}); next: hmi serve"
    print_done({**_view(made), "data": str(data)}, text, as_json)


@contextmanager
def _stores(session: CliSession) -> Iterator[tuple[Any, Any]]:
    """The registry and the PLOT store of the data folder."""
    from hmi.stores.layout import Layout
    from hmi.stores.plot.plots import open_plots
    from hmi.stores.records.registry import Registry

    layout = Layout(session.settings().data)
    registry = Registry.open(layout.registry)
    try:
        plots = open_plots(layout.plots)
        try:
            yield registry, plots
        finally:
            plots.close()
    finally:
        registry.close()


def _target(session: CliSession, place: str | None, folder: str | None) -> Target:
    """The place that is named, or the configured one. Raises InvalidInput, Conflict."""
    if place is None:
        from hmi.jobs.back_up import configured_target

        return configured_target(session.settings(), folder or "")
    _refuse(folder and "--folder", "TARGET names the place itself: leave --folder out")
    from hmi.backup.target import open_target

    return open_target(place)


def _refuse(given: object, message: str) -> None:
    if given:
        raise InvalidInput(message)


def _view(manifest: Manifest) -> dict[str, Any]:
    return manifest.model_dump(mode="json", exclude={"format", "files_sha256"})


def _sized(row: Mapping[str, Any], field: str) -> str:
    return "-" if row.get(field) is None else size(row[field])
