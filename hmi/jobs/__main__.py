"""Run one job: `python -m hmi.jobs --data DIR JOB`. The job runner starts it (jobs/runtime/starter.py)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hmi.jobs.runtime.parent_death import die_with_parent
from hmi.jobs.runtime.priority import lower_priority


def main() -> int:
    die_with_parent()
    parser = argparse.ArgumentParser(prog="python -m hmi.jobs", description="Run one job of a data folder.")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--bodies", help=argparse.SUPPRESS)
    parser.add_argument("--background", type=int, help=argparse.SUPPRESS)  # its nice value
    parser.add_argument("job")
    given = parser.parse_args()
    if given.background is not None:
        lower_priority(given.background)
    # These imports take seconds, so they come after the guard that ends an orphaned process, and after the
    # choice of its priority.
    from hmi.config import Settings
    from hmi.errors import HmiError
    from hmi.jobs.bodies import find_bodies
    from hmi.jobs.runtime.process import run_job, say_holding

    try:
        if given.background is not None:
            say_holding(given.data, given.job)
        return run_job(Settings.from_env(data=given.data), given.job, find_bodies(given.bodies))
    except HmiError as error:
        sys.stderr.write(f"{error.kind}: {error.message}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
