"""`hmi store`: what lies on the disk."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hmi.cli.base import Group, as_json, pass_session
from hmi.cli.options import FILE
from hmi.cli.output import notes, print_fields, print_json, size
from hmi.cli.session import Session
from hmi.errors import Damaged

if TYPE_CHECKING:
    from hmi.api.local import LocalCalls

KEPT = 8
"""Newest versions of a domain that stay, beside those that models answer from."""


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
    """Read every byte and compare checksums; exit code 1 where something is damaged."""
    with session.local() as local:
        report = asdict(local.services.manager.plots.verify())
        report["damages"] += [{"segment": name, "what": what} for name, what in _damaged_artefacts(local)]
    if as_json:
        print_json(report)
    else:
        for damage in report["damages"]:
            notes.print(f"{damage['segment']}: {damage['what']}")
    if report["damages"]:
        raise Damaged(f"{len(report['damages'])} parts are damaged: restore them from a copy, or build them again")
    notes.print(f"{report['versions']} PLOT versions in {report['segments']} segments and all adapters are sound")


@store.command()
@click.option("--dry-run", is_flag=True, help="Only tell what would go.")
@as_json
@pass_session
def gc(session: Session, dry_run: bool, as_json: bool) -> None:
    """Remove what no domain and no model needs."""
    with session.local() as local:
        report = collect(local, dry_run)
    if as_json:
        print_json(report)
        return
    verb = "would be freed" if dry_run else "freed"
    notes.print(f"{len(report['versions'])} old PLOT versions, {size(report['bytes'])} {verb}")


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
        version = local.services.manager.plots.import_archive(archive, ref=name)
    found = {"domain": version.ref, "version": version.id}
    print_json(found) if as_json else notes.print(f"{version.ref} is at version {version.id}")


def collect(local: LocalCalls, dry_run: bool) -> dict[str, Any]:
    """Collect the PLOT store, keeping as many versions of each domain as the oldest that a model pins needs."""
    manager = local.services.manager
    pinned = {v.plot_version for m in manager.models() for v in m.versions}
    keep = KEPT
    for ref in manager.plots.refs():
        places = [i for i, version in enumerate(manager.plots.history(ref), 1) if version.id in pinned]
        keep = max(keep, *places) if places else keep
    report = asdict(manager.plots.gc(dry_run=dry_run, keep_versions=keep))
    return dict(json.loads(json.dumps(report)))


def _damaged_artefacts(local: LocalCalls) -> list[tuple[str, str]]:
    manager = local.services.manager
    found = []
    for name in sorted({v.artefact for m in manager.models() for v in m.versions}):
        try:
            manager.adapters.get(name)
        except Damaged as error:
            found.append((name, error.message))
    return found
