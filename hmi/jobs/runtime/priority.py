"""A low priority for a process. Imports only the standard library, so that it takes effect at once."""

from __future__ import annotations

import os
from contextlib import suppress


def lower_priority(nice: int) -> None:
    """Give this process a nice value: 0, the priority of others, to 19, the lowest.

    SCHED_IDLE of Linux would be lower still. A process of it may wait for minutes on a busy machine, and so
    would whoever needs a lock that it holds; nice 19 leaves it a few percent. Threads that exist already keep
    their priority.
    """
    with suppress(OSError):  # a container may forbid it: then the job runs as others do
        os.setpriority(os.PRIO_PROCESS, 0, nice)
