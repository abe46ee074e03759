"""`hmi job`: list, show, cancel, watch, resume."""

from __future__ import annotations

from typing import Any

import click

from hmi.cli.framework.base import CommandGroup, FolderCommand, ServerCommand, as_json, pass_session
from hmi.cli.framework.options import Whole
from hmi.cli.framework.output import print_done, print_fields, print_json, print_table, size
from hmi.cli.framework.progress import run_job, show_end
from hmi.cli.framework.second_version import tell_improving
from hmi.cli.framework.session import CliSession, segment
from hmi.core import ENDED
from hmi.errors import Conflict, InvalidInput

LONGEST_REASON = 160
"""Characters of a reason that the list shows; 'hmi job show' prints the whole reason."""


@click.group(cls=CommandGroup)
def job() -> None:
    """Jobs: long operations that survive restarts."""


@job.command("list")
@click.option(
    "--state",
    type=click.Choice(["queued", "running", "succeeded", "failed", "cancelled"]),
    help="Only jobs in this state.",
)
@click.option("--limit", type=Whole(1, 1000), default=50, show_default=True, help="Show at most this many.")
@as_json
@pass_session
def list_(session: CliSession, state: str | None, limit: int, as_json: bool) -> None:
    """List jobs, newest first."""
    query = {"limit": str(limit), **({"state": state} if state else {})}
    with session.calls() as calls:
        jobs = calls.request("GET", "/manage/jobs", query=query)["jobs"]
    if as_json:
        print_json(jobs)
        return
    rows = [{**j, "progress": _progress(j), "reason": _reason(j)} for j in jobs]
    columns = {
        "job": "JOB",
        "kind": "KIND",
        "target": "TARGET",
        "state": "STATE",
        "progress": "PROGRESS",
        "created": "CREATED",
        **({"server": "SERVER"} if any(j.get("server") for j in jobs) else {}),
        "reason": "REASON",
    }
    print_table(rows, columns, "no jobs")


@job.command()
@click.argument("name", metavar="JOB")
@as_json
@pass_session
def show(session: CliSession, name: str, as_json: bool) -> None:
    """Show a job: its progress, its result, or why it failed."""
    with session.calls() as calls:
        found = calls.request("GET", f"/manage/jobs/{segment(name)}")
    print_json(found) if as_json else print_fields(
        {**found, "progress": _progress(found), "cost": _cost(found), "pacing": _pacing(found)}
    )


@job.command()
@click.argument("name", metavar="JOB")
@as_json
@pass_session
def cancel(session: CliSession, name: str, as_json: bool) -> None:
    """Ask a job to stop."""
    with session.calls() as calls:
        found = calls.request("DELETE", f"/manage/jobs/{segment(name)}")
    print_done(
        found, f"job {name} is {'asked to stop' if found['state'] not in ENDED else found['state']}", as_json
    )


@job.command(cls=ServerCommand)
@click.argument("name", metavar="JOB")
@as_json
@pass_session
def watch(session: CliSession, name: str, as_json: bool) -> None:
    """Follow a job of a running server (--url) until it ends. Exit code 3: an update was held back."""
    if not session.remote:
        raise InvalidInput(
            "'hmi job watch' follows a running server's job: add --url, or use 'hmi job resume'"
        )
    with session.calls() as calls:
        view = run_job(session, calls, name)
        show_end(view, as_json)
        tell_improving(session, view)


@job.command(cls=FolderCommand)
@click.argument("name", metavar="JOB")
@as_json
@pass_session
def resume(session: CliSession, name: str, as_json: bool) -> None:
    """Continue an interrupted job from its last checkpoint. Exit code 3: an update was held back."""
    session.not_remote("a server resumes its jobs by itself: leave --url out, or use 'hmi job watch'")
    session.may_start_jobs()
    with session.local() as local:
        local.services.manager.runner.recover()
        state = local.request("GET", f"/manage/jobs/{segment(name)}")["state"]
        if state != "queued":
            has = "has" if state in ("succeeded", "failed") else "is"
            raise Conflict(f"job {name} {has} {state}: only a queued or interrupted job can be resumed")
        view = run_job(session, local, name)
        show_end(view, as_json)
        tell_improving(session, view)


def _progress(view: dict[str, Any]) -> str:
    progress = view["progress"]
    if not progress["total"]:
        return progress["phase"] or "-"
    return f"{progress['phase']} {progress['step']}/{progress['total']}"


def _reason(view: dict[str, Any]) -> str:
    """Return why a job failed, or why its result was held back, on one line."""
    reason = (view["error"] or {}).get("message") or (view["result"] or {}).get("reason") or ""
    line = " ".join(reason.split())
    return line if len(line) <= LONGEST_REASON else f"{line[: LONGEST_REASON - 1]}…"


def _cost(job: dict[str, Any]) -> str | None:
    cost = job.get("cost")  # a server of an earlier version has none
    if cost is None:
        return None
    peak = "" if cost["peak_bytes"] is None else f", at most {size(cost['peak_bytes'])} of memory"
    paused = f", paused for {cost['paused_ms'] / 1000:.0f} s" if cost.get("paused_ms") else ""
    return f"{cost['cpu_ms'] / 1000:.1f} s of CPU{peak}{paused}"


def _pacing(job: dict[str, Any]) -> str | None:
    pacing = job.get("pacing")
    if pacing is None:
        return None
    starved = ", and hardly ran within the last hour" if pacing["starved"] else ""
    paused_s, running_s = pacing["paused_ms"] / 1000, pacing["running_ms"] / 1000
    return (
        f"free to run for {running_s:.0f} s, paused for {paused_s:.0f} s while texts were answered{starved}"
    )
