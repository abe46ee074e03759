"""`hmi store export` and `import`: a file with a domain's PLOT and all that it builds on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import plot_store
from hmi.cli.data.store.arguments import opened, version_of
from hmi.cli.data.store.bars import byte_bar
from hmi.cli.framework.base import FolderCommand, as_json, pass_session
from hmi.cli.framework.options import FILE, check_target
from hmi.cli.framework.output import notes, print_done, size
from hmi.cli.framework.session import CliSession
from hmi.core import DomainId
from hmi.errors import Conflict
from hmi.stores.plot.plots import plot_errors

if TYPE_CHECKING:
    from plot_store import VersionInfo


@click.command(cls=FolderCommand)
@click.argument("domain", metavar="ROOT/BRANCH[@TAG]")
@click.argument("archive", type=click.Path(dir_okay=False, path_type=Path))
@as_json
@pass_session
def export(session: CliSession, domain: str, archive: Path, as_json: bool) -> None:
    """Write a domain's PLOT, and the PLOTs that it builds on, to the file ARCHIVE.

    The file also holds lower layers that were pretrained further. It does not hold the root's model: import
    that first where you import the file. An existing file is replaced.
    """
    check_target(archive)
    with opened(session) as local:
        manager = local.services.manager
        version = version_of(manager, domain)
        with byte_bar(f"exporting {domain}") as show:
            manager.export_domain(version, archive, show)
        own, *ancestors = manager.plots.archived(archive)
    found = {
        "domain": domain,
        "archive": str(archive),
        "bytes": archive.stat().st_size,
        **_contents(own, ancestors),
    }
    text = f"{domain} is in {archive} ({size(found['bytes'])}, packed): {_listed(own, ancestors)}"
    print_done(found, text, as_json)


@click.command("import", cls=FolderCommand)
@click.argument("archive", type=FILE)
@click.option("--as", "name", help="Import the domain under this name, ROOT/BRANCH.")
@as_json
@pass_session
def import_(session: CliSession, archive: Path, name: str | None, as_json: bool) -> None:
    """Import an exported PLOT, and the PLOTs that it builds on unless they are here already."""
    with opened(session) as local, plot_errors():
        manager = local.services.manager
        name = None if name is None else str(DomainId.parse(name))
        with byte_bar(f"importing {archive.name}") as show, _hinted():
            version, lacking = manager.import_domain(archive, name, show)
        _, *ancestors = manager.plots.archived(archive)
    text = f"{version.ref} is at version {version.id}: {_listed(version, ancestors)}"
    print_done({"domain": version.ref, "version": version.id, **_contents(version, ancestors)}, text, as_json)
    if lacking:
        notes.print(
            f"the file lacks the lower layers of {', '.join(lacking)}, since an earlier release exported it. "
            "Models answer; exact answers, updates and growth need an export by this release"
        )


def _contents(own: VersionInfo, ancestors: Sequence[VersionInfo]) -> dict[str, Any]:
    """Return what a file holds, for JSON.

    `own_bytes` counts the domain's own entries; `builds_on` lists the nearest ancestor first.
    """
    return {
        "own_bytes": own.bytes,
        "builds_on": [{"domain": each.ref, "version": each.id, "bytes": each.bytes} for each in ancestors],
    }


def _listed(own: VersionInfo, ancestors: Sequence[VersionInfo]) -> str:
    below = ", ".join(f"{each.ref} {size(each.bytes)}" for each in ancestors)
    return (
        f"its own {size(own.bytes)}, and {f'what it builds on: {below}' if below else 'it builds on nothing'}"
    )


@contextmanager
def _hinted() -> Iterator[None]:
    """Add the option that gives another name to the store's error."""
    try:
        yield
    except plot_store.Conflict as error:
        raise Conflict(f"{error} (--as ROOT/BRANCH)") from error
