"""`hmi store info`, `verify`, `scrub`, `gc` and `compact`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

import click

from hmi.cli.data.store.arguments import domain_of, opened
from hmi.cli.data.store.bars import byte_bar
from hmi.cli.framework.base import Command, FolderCommand, as_json, pass_session
from hmi.cli.framework.options import Bytes, Number, Whole
from hmi.cli.framework.output import notes, print_fields, print_json, print_table, size
from hmi.cli.framework.progress import run_job, show_end
from hmi.cli.framework.session import CliSession
from hmi.errors import Conflict, Damaged
from hmi.stores.plot.plots import plot_errors

if TYPE_CHECKING:
    from hmi.api.process.local import LocalCalls
    from hmi.manager import Manager
    from plot_store import VerifyReport


@click.command(cls=Command)
@as_json
@pass_session
def info(session: CliSession, as_json: bool) -> None:
    """Show counts and bytes by kind; on a data folder also the tags, pins and leases of its PLOTs."""
    with session.calls() as calls:
        found = calls.request("GET", "/manage/stats")
        if not session.remote:
            found |= _marks(cast("LocalCalls", calls).services.manager)
    if as_json:
        print_json(found)
        return
    sizes = {
        name: {tier: size(b) for tier, b in value.items()} if name.endswith("bytes") else value
        for name, value in found.items()
        if name != "plot_lookups"
    }
    print_fields(sizes)


def _marks(manager: Manager) -> dict[str, Any]:
    plots = manager.plots
    with plot_errors():
        pins = [f"{pin.version} by {pin.owner}" for pin in plots.pins()]
        leases = [f"{lease.version} by {lease.owner}" for lease in plots.leases()]
        return {"tags": plots.tags(), "pins": pins, "leases": leases}


@click.command(cls=FolderCommand)
@as_json
@pass_session
def verify(session: CliSession, as_json: bool) -> None:
    """Check every byte of roots, PLOTs and modules by checksums. Exit code 1: something is damaged."""
    with opened(session) as local:
        manager = local.services.manager
        report = _scrubbed(session, None, None)
        problems = [*_problems(report), *manager.verify(), *manager.verify_files()]
    _show_report(report, problems, as_json, "and all roots, lower layers and adapters are sound")


@click.command(cls=FolderCommand)
@click.argument("domain", metavar="[ROOT/BRANCH]", required=False)
@click.option(
    "--rate",
    type=Bytes(),
    metavar="SIZE",
    help="Read at most SIZE a second, in bytes or as 50M, to leave disk time to others.",
)
@as_json
@pass_session
def scrub(session: CliSession, domain: str | None, rate: int | None, as_json: bool) -> None:
    """Check every byte of all PLOTs, or of one domain's and those that it builds on.

    A child process reads the files, so damage can kill only that. Safe while a server runs. Exit code 1:
    something is damaged.
    """
    with opened(session) as local:
        ref = None if domain is None else domain_of(local.services.manager, domain)
        report = _scrubbed(session, ref, rate)
    _show_report(report, _problems(report), as_json, "are sound")


def _scrubbed(session: CliSession, ref: str | None, rate: int | None) -> VerifyReport:
    from hmi.stores.layout import Layout
    from plot_store import scrub

    with plot_errors(), byte_bar("reading PLOTs") as show:
        path = Layout(session.settings().data).plots
        return scrub(path, ref=ref, bytes_per_second=rate, progress=lambda at: show(at.done, at.total))


def _problems(report: VerifyReport) -> list[str]:
    return [f"{damage.segment or 'the catalogue'}: {damage.what}" for damage in report.damages]


def _show_report(report: VerifyReport, problems: list[str], as_json: bool, good: str) -> None:
    """Show a report. Raises Damaged if there are problems."""
    if as_json:
        print_json(
            {
                "versions": report.versions,
                "segments": report.segments,
                "bytes": report.bytes,
                "problems": problems,
            }
        )
    elif problems:
        notes.print("\n".join(problems), markup=False)
    if problems:
        raise Damaged(
            f"{len(problems)} parts are damaged or missing: restore them from a copy, or create them again"
        )
    notes.print(f"{report.versions} PLOT versions in {report.segments} segments {good}")


@click.command(cls=FolderCommand)
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@click.option(
    "--keep-versions",
    type=Whole(min=1),
    help="Keep this many of each domain's newest versions (default: HMI_PLOT_KEEP_VERSIONS).",
)
@click.option("--keep-days", type=Number(0, 36_500), help="Also keep versions younger than this many days.")
@as_json
@pass_session
def gc(
    session: CliSession, dry_run: bool, keep_versions: int | None, keep_days: float | None, as_json: bool
) -> None:
    """Remove what nothing needs. Tags, pins, models and running jobs keep their versions."""
    freed: dict[str, int] = {}
    with opened(session) as local:
        manager = local.services.manager
        report = manager.maintenance.collect(
            dry_run=dry_run, keep_versions=keep_versions, keep_days=keep_days
        )
        if not dry_run:
            freed = manager.collect_garbage(plots=False)
            freed["plots"] = freed.get("plots", 0) + report.bytes
    if as_json:
        print_json({**freed, "collected": asdict(report)})
        return
    print_fields(
        {
            "versions": report.versions,
            "segments": len(report.segments),
            "orphans": len(report.orphans),
            "builds": report.builds,
            "bytes": size(report.bytes),
        }
    )
    kept = [{"version": version, "why": why} for version, why in report.kept.items()]
    print_table(kept, {"version": "KEPT", "why": "WHY"}, "no version is kept")
    if dry_run:
        notes.print("nothing was removed: leave --dry-run out to remove it")
    else:
        notes.print("freed: " + ", ".join(f"{kind} {size(count)}" for kind, count in freed.items()))


@click.command(cls=FolderCommand)
@click.argument("domain", metavar="[ROOT/BRANCH]", required=False)
@click.option("--all", "every", is_flag=True, help="Every domain with more small segments than allowed.")
@as_json
@pass_session
def compact(session: CliSession, domain: str | None, every: bool, as_json: bool) -> None:
    """Merge the small segments that updates left. Models stay on their PLOT version.

    While a server runs on the folder, the server does the work.
    """
    if every == (domain is not None):
        raise click.UsageError("give either a domain or --all")
    results = []
    with opened(session) as local:
        manager = local.services.manager
        for name in manager.maintenance.due() if domain is None else [domain_of(manager, domain)]:
            results.append(_compacted(session, local, name))
    if as_json:
        print_json(results)
        return
    columns = {
        "domain": "DOMAIN",
        "version": "VERSION",
        "segments": "SEGMENTS",
        "bytes": "BYTES",
        "reason": "NOTE",
    }
    print_table(results, columns, "no domain has more small segments than allowed")


def _compacted(session: CliSession, local: LocalCalls, domain: str) -> dict[str, Any]:
    """Compact one domain and return its result. A domain with another job is skipped with a note."""
    try:
        job = local.services.manager.maintenance.compact(domain)
    except Conflict as error:
        return {"domain": domain, "compacted": False, "reason": error.message}
    view = run_job(session, local, job.job)
    if view["state"] != "succeeded":
        show_end(view, as_json=False)
    return dict(view["result"])
