"""`hmi store`: what lies on the disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hmi.cli.base import Group, as_json, pass_session
from hmi.cli.options import FILE
from hmi.cli.output import notes, print_fields, print_json, size
from hmi.cli.session import Session
from hmi.core import DomainId
from hmi.errors import Conflict, Damaged

if TYPE_CHECKING:
    from hmi.manager import Manager


@click.group(cls=Group)
def store() -> None:
    """The stores of the data folder."""


@store.command()
@as_json
@pass_session
def info(session: Session, as_json: bool) -> None:
    """Counts and bytes by tier."""
    with session.calls() as calls:
        found = calls.request("GET", "/manage/stats")
    if as_json:
        print_json(found)
        return
    sizes = {name: {tier: size(b) for tier, b in value.items()} if name.endswith("bytes") else value
             for name, value in found.items()}  # fmt: skip
    print_fields(sizes)


@store.command()
@as_json
@pass_session
def verify(session: Session, as_json: bool) -> None:
    """Read every byte and compare checksums; exit code 1 where something is damaged or missing."""
    with session.local() as local:
        manager = local.services.manager
        report = manager.plots.verify()
        problems = [f"{damage.segment or 'the catalogue'}: {damage.what}" for damage in report.damages]
        problems += [*manager.verify(), *_damaged_artefacts(manager)]
    if as_json:
        print_json({"versions": report.versions, "segments": report.segments, "bytes": report.bytes,
                    "problems": problems})  # fmt: skip
    elif problems:
        notes.print("\n".join(problems), markup=False)
    if problems:
        raise Damaged(f"{len(problems)} parts are damaged or missing: restore them from a copy, or make them again")
    notes.print(f"{report.versions} PLOT versions in {report.segments} segments and all adapters are sound")


@store.command()
@as_json
@pass_session
def gc(session: Session, as_json: bool) -> None:
    """Remove what no domain and no model needs."""
    with session.local() as local:
        freed = local.services.manager.collect_garbage()
    if as_json:
        print_json(freed)
    else:
        notes.print("freed: " + ", ".join(f"{kind} {size(count)}" for kind, count in freed.items()))


@store.command()
@click.argument("domain", metavar="ROOT/BRANCH")
@click.argument("archive", type=click.Path(dir_okay=False, path_type=Path))
@pass_session
def export(session: Session, domain: str, archive: Path) -> None:
    """Write a domain's PLOT and all it builds on to one file."""
    with session.local() as local:
        local.services.manager.plots.export(domain.replace(".", "/"), archive)
    notes.print(f"{domain} is in {archive} ({size(archive.stat().st_size)})")


@store.command("import")
@click.argument("archive", type=FILE)
@click.option("--as", "name", help="Another name for the domain.")
@as_json
@pass_session
def import_(session: Session, archive: Path, name: str | None, as_json: bool) -> None:
    """Take over an exported PLOT."""
    with session.local() as local:
        manager = local.services.manager
        name = None if name is None else str(DomainId.parse(name))
        _check_roots(manager, archive, name)
        version = manager.plots.import_archive(archive, ref=name)
    found = {"domain": version.ref, "version": version.id}
    print_json(found) if as_json else notes.print(f"{version.ref} is at version {version.id}")


def _check_roots(manager: Manager, archive: Path, name: str | None) -> None:
    """Raise Conflict unless every version of the archive stands on a root of this data folder.

    A PLOT's rows mean something to the upper layers of the very import that computed them, and to no others.
    """
    roots = {root.name: root.version for root in manager.registry.roots()}
    for at, version in enumerate(manager.plots.archived(archive)):
        root = DomainId.parse(name if at == 0 and name is not None else version.ref).root
        made_on = version.meta.get("root_version")
        if made_on is None or roots.get(root) != made_on:
            raise Conflict(
                f"{version.ref} in {archive} was computed with version {made_on} of its root, which is not what this "
                f"data folder has as root {root!r} ({roots.get(root, 'none')}): import it into the data folder that "
                "it was exported from or a copy of that, or create the domain here from its corpus"
            )


def _damaged_artefacts(manager: Manager) -> list[str]:
    found = []
    for name in sorted({v.artefact for m in manager.models() for v in m.versions} & manager.adapters.names()):
        try:
            manager.adapters.get(name)
        except Damaged as error:
            found.append(error.message)
    return found
