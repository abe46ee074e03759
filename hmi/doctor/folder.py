"""Checks of a data folder: its format, damage, leftovers, locks, failed jobs, keys."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from typing import TYPE_CHECKING, Final

from hmi.config import Settings
from hmi.doctor.finding import Finding, findings_of, ok, problem, warning
from hmi.doctor.machine import DAY_S, SOON_DAYS
from hmi.stores.layout import FORMAT, Layout

if TYPE_CHECKING:
    from hmi.manager import Manager

RECENT_DAYS: Final = 7
"""Jobs that failed within this time are shown."""
SHOWN: Final = 5
"""Most names in one finding."""
OLD_S: Final = 3600.0
"""Leftovers older than this belong to nobody."""


def folder_findings(settings: Settings, *, deep: bool = False) -> Iterator[Finding]:
    """Check the data folder. `deep` reads every byte; it may take minutes."""
    layout = Layout(settings.data)
    if not layout.registry.is_dir():
        yield warning(
            "data folder", f"there is no data folder at {settings.data}: 'hmi root import' creates one"
        )
        return
    format_ok = _format(layout)
    yield format_ok
    if format_ok.level == "problem":
        return  # whatever opens the folder now might misread it
    yield from findings_of("leftovers", lambda: _leftovers(layout))
    yield from findings_of("registry", lambda: _check_contents(settings, layout, deep))


def _format(layout: Layout) -> Finding:
    try:
        found = layout.format.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        return problem(
            "format", f"{layout.format} cannot be read ({error.strerror}): restore it from a backup"
        )
    if not found.isdecimal() or int(found) > FORMAT:
        return problem(
            "format", f"format {found[:20]!r}, and this release reads up to {FORMAT}: upgrade hmi-server"
        )
    return ok("format", f"data folder {layout.data}, format {found}")


def _leftovers(layout: Layout) -> Iterator[Finding]:
    before = time.time() - OLD_S
    places = (layout.roots, layout.lowers, layout.samples, layout.adapters)
    found = [p for place in places for p in (*place.glob(".*.tmp"), *place.glob("*/.*.tmp"))]
    if layout.incoming.is_dir():
        found += [path for path in layout.incoming.iterdir() if not path.name.startswith(".")]
    old = [path.name for path in found if path.stat().st_mtime < before]
    if old:
        yield warning(
            "leftovers", f"{_some(old)} of processes that died: a running server removes them hourly"
        )
    else:
        yield ok("leftovers", "no files of processes that died")
    note, lock = layout.server_note, _served(layout)
    if note.exists() and not lock:
        yield warning("lock", f"{note} is from a server that died: the next start replaces it, or delete it")
    else:
        yield ok("lock", "a server owns the folder" if lock else "no server owns the folder")


def _served(layout: Layout) -> bool:
    from hmi.api.process.lock import live_server

    return live_server(layout.data) is not None


def _check_contents(settings: Settings, layout: Layout, deep: bool) -> Iterator[Finding]:
    from hmi.manager import Manager
    from hmi.manager.maintenance import probe_plots

    probe_plots(settings.data)  # in a child, since a damaged catalogue can kill the process that opens it
    with closing(Manager(settings)) as manager:
        yield from findings_of("files", lambda: _damage(manager, layout, deep))
        yield from findings_of("jobs", lambda: _jobs(manager))
        yield from findings_of("keys", lambda: _keys(manager))
        yield from findings_of("executors", lambda: _executors(manager, layout))


def _damage(manager: Manager, layout: Layout, deep: bool) -> Iterator[Finding]:
    found = [*manager.verify()]
    if deep:
        from plot_store import scrub

        report = scrub(layout.plots)
        found += [f"{damage.segment or 'the catalogue'}: {damage.what}" for damage in report.damages]
        found += manager.verify_files()
    for text in found[:SHOWN]:
        yield problem("files", text)
    if len(found) > SHOWN:
        yield problem("files", f"and {len(found) - SHOWN} more: 'hmi store verify' lists them all")
    if not found:
        yield ok(
            "files",
            "every byte is as it was written" if deep else "nothing is missing; --deep reads every byte",
        )


def _jobs(manager: Manager) -> Iterator[Finding]:
    since = time.time() - RECENT_DAYS * DAY_S
    jobs = manager.registry.jobs()
    failed = [job for job in jobs if job.state == "failed" and _time(job.ended or job.created) > since]
    for job in failed[-SHOWN:]:
        kind = (job.error or {}).get("kind", "internal")
        yield warning(
            "jobs", f"job {job.job} ({job.kind}) failed with {kind}: 'hmi job show {job.job}' says why"
        )
    if not failed:
        yield ok("jobs", f"none of {len(jobs)} jobs failed within {RECENT_DAYS} days")
    ahead = max((_time(job.created) for job in jobs), default=0.0) - time.time()
    if ahead > 60:
        yield problem("clock", f"a job was created {ahead:.0f} s after now: the clock went back; set it")


def _keys(manager: Manager) -> Iterator[Finding]:
    owners = [None, *(tenant.tenant for tenant in manager.registry.tenants())]
    soon, count = [], 0
    for owner in owners:
        for key in manager.registry.keys(owner):
            count += 1
            expires = getattr(key, "expires", None)
            if expires and _time(expires) < time.time() + SOON_DAYS * DAY_S:
                soon.append(f"{key.key_id} of {owner or 'an administrator'} ({expires})")
    if soon:
        cure = "create new ones with 'hmi key create', and replace them"
        yield warning("keys", f"expired, or within {SOON_DAYS} days: {_some(soon)}: {cure}")
    else:
        yield ok("keys", f"none of {count} keys expires within {SOON_DAYS} days")


def _executors(manager: Manager, layout: Layout) -> Iterator[Finding]:
    """Yield for each root whether its executors were measured on this machine, and the numbers that they
    multiply.
    """
    from hmi.execution.machine import fingerprint
    from hmi.stores.profiles import Profiles

    profiles, machine = Profiles(layout), fingerprint()
    for root in manager.registry.roots(tolerant=True):
        if root.generates:
            continue
        found = profiles.get(root.name, root.version, machine)
        if found is None:
            yield ok("executors", f"root {root.name} was not measured on this machine: its first use does it")
        else:
            measured = ", ".join(map(str, found.measured))
            yield ok("executors", f"root {root.name}, µs a token by batch: {measured}")


def _time(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
