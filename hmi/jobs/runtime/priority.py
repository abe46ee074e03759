"""A low priority for a process, for processor and memory.

Imports only the standard library, so that it takes effect at once.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def lower_priority(nice: int) -> None:
    """Give this process a nice value: 0, the priority of others, to 19, the lowest.

    SCHED_IDLE of Linux would be lower still. A process of it may wait for minutes on a busy machine, and so
    would whoever needs a lock that it holds; nice 19 leaves it a few percent. Threads that exist already keep
    their priority.
    """
    with suppress(OSError):  # a container may forbid it: then the job runs as others do
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    # If the machine runs out of memory all the same, the kernel is to end this process, not the server.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
