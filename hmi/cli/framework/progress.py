"""Running a job here or following it on a server, with a progress bar."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, cast

import click

from hmi.cli.framework import endings
from hmi.cli.framework.output import notes, print_json
from hmi.cli.framework.second_version import tell_improving
from hmi.cli.framework.session import Calls, CliSession
from hmi.core import ENDED
from hmi.core import Progress as JobProgress
from hmi.errors import HmiError

if TYPE_CHECKING:
    from hmi.api.process.local import LocalCalls
    from hmi.client.progress import JobBar

POLL_S = 0.3
"""Seconds between two requests for the state of a server's job."""
HELD_BACK = 3
"""The exit code if an update was held back, unless --publish never was given."""


def job_bar() -> AbstractContextManager[JobBar]:
    """Show a job's progress, as the client does, while the block runs."""
    from hmi.client import progress  # whose libraries take a tenth of a second

    return progress.job_bar(notes)


def finish(
    session: CliSession, calls: Calls, job: str, *, detach: bool, as_json: bool, told: Collection[str] = ()
) -> None:
    """Run a job (on a data folder) or follow it (on a server) until it ends, and show how it ended.

    With `detach`, only print the job's id. told: remarks that were made already. Raises HmiError if the job
    failed, click.Abort for Ctrl-C, Exit if its result was held back.
    """
    if detach:
        if as_json:
            print_json({"job": job})
        else:
            click.echo(job)
        if not session.remote:
            notes.print(
                f"job {job} is queued, and nothing runs it yet: start it with 'hmi job resume {job}', or "
                "with 'hmi serve' on this folder",
                soft_wrap=True,
            )
        return
    view = run_job(session, calls, job)
    show_end(view, as_json, told)
    tell_improving(session, view)


def run_job(session: CliSession, calls: Calls, job: str) -> dict[str, Any]:
    """Run or follow a job, and return its final view.

    Ctrl-C cancels a job that runs here; a job that a server runs continues. Raises click.Abort for both.
    """
    with job_bar() as bar:
        try:
            if session.remote:
                return _follow(calls, job, bar)
            cast("LocalCalls", calls).run(job, bar.show)
        except KeyboardInterrupt:
            notes.print(
                f"job {job} continues: 'hmi job watch {job}' follows it, 'hmi job cancel {job}' stops it"
            )
            raise click.Abort from None
    view = _view(calls, job)
    if view["state"] == "cancelled":
        notes.print(f"job {job} was cancelled")
        raise click.Abort
    return view


def show_end(view: dict[str, Any], as_json: bool, told: Collection[str] = ()) -> None:
    """Show how a job ended, without the remarks that were `told`.

    Raises HmiError if it did not succeed, Exit if its result was held back.
    """
    if view["state"] == "succeeded":
        if as_json:
            print_json(view)
        else:
            click.echo("\n".join(endings.lines(view, told)))
        _show_held_back(view)
        return
    error = view["error"] or {}
    reason = error.get("message") or f"it is {view['state']}"
    raise HmiError(f"job {view['job']} {view['state']}: {reason}")


def _show_held_back(view: dict[str, Any]) -> None:
    """If an update was held back, say so, and raise Exit unless that was asked for."""
    result = view["result"] or {}
    if result.get("published", True):  # a server of an earlier version always publishes
        return
    cure = f"'hmi model publish {view['target']} {result['version']}' lets it answer"
    notes.print(
        f"version {result['version']} is held back: {result['reason']}; {cure}", markup=False, soft_wrap=True
    )
    if result.get("publish") != "never":
        raise click.exceptions.Exit(HELD_BACK)


def _follow(calls: Calls, job: str, bar: JobBar) -> dict[str, Any]:
    while True:
        view = _view(calls, job)
        bar.show(JobProgress(**view["progress"]))
        if view["state"] in ENDED:
            return view
        time.sleep(POLL_S)


def _view(calls: Calls, job: str) -> dict[str, Any]:
    view: dict[str, Any] = calls.request("GET", f"/manage/jobs/{job}")
    return view
