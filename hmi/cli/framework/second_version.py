"""Commands tell of the background job that tries to improve a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hmi.cli.framework.output import notes, print_table
from hmi.cli.framework.session import CliSession


def improved(result: Mapping[str, Any]) -> dict[str, str]:
    """The figures of a job `improve` that has ended."""
    found = {"improved" if result["version"] is not None else "not improved": str(result["reason"])}
    if result["gain"] is not None:
        found["gain"] = f"{result['gain']:+.4f} on the held-out rows"
    return {**found, "took": f"{result['cpu_s']:.1f} s of CPU"}


def tell_improving(session: CliSession, view: Mapping[str, Any]) -> None:
    """Say that a further version may follow, after the job that published one."""
    result = view["result"] or {}
    job = result.get("improving")
    if job is None:
        return
    next_ = "a second" if result.get("version") == 1 else "a further"
    begins = f"{next_} version may follow: job {job} publishes one if the held-out rows allow it"
    runs = (
        f"'hmi model show {view['target']}' tells"
        if session.remote
        else f"nothing runs it yet: 'hmi serve' on this folder does, or 'hmi job resume {job}'"
    )
    notes.print(f"{begins}; {runs}", markup=False, soft_wrap=True)


def show_tried(improving: Mapping[str, Any] | None) -> None:
    """Print what a model's background job has tried."""
    if improving is None or not improving["tried"]:
        return
    columns = {
        "name": "TRIED",
        "before": "BEFORE",
        "after": "AFTER",
        "sure": "SURE",
        "cpu_s": "CPU S",
        "why": "WHY",
    }
    print_table(improving["tried"], columns, "")
