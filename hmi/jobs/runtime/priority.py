"""The lowest priority for a process. Imports only the standard library, so that it takes effect at once."""

from __future__ import annotations

import os
from contextlib import suppress

LOWEST = 19


def lower_priority() -> None:
    """Let this process run only while no other wants the processor, as far as the system can.

    Linux has SCHED_IDLE: such a process gives way as soon as another wakes, while one of nice 19 may first
    finish its time slice of some milliseconds. Other systems get nice 19. Threads that exist already keep
    their priority.
    """
    with suppress(OSError):  # a container may forbid either: then the job runs as others do
        os.setpriority(os.PRIO_PROCESS, 0, LOWEST)
    if hasattr(os, "SCHED_IDLE"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
