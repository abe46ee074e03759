"""Ends a job's process when its parent dies, from the process's first moment.

Imports only the standard library: a job's other imports take seconds on a busy machine, and a job
must not outlive a server that is killed meanwhile.
"""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import threading
from typing import Final

ORPHANED: Final = 76
"""Exit code: the parent died. Where the kernel's signal was first, the process ended by SIGIO instead."""


def die_with_parent() -> None:
    """End at once when the parent dies: the parent holds the other end of the pipe that is this
    process's standard input.

    PR_SET_PDEATHSIG would not do: it fires when the parent's thread that started the job ends, and
    a stopping server's supervisor ends before its jobs have reached a checkpoint. Does nothing if
    standard input is no pipe. Call it once.
    """
    if not stat.S_ISFIFO(os.fstat(0).st_mode):
        return
    # The kernel ends us when the pipe closes, also while a library holds the interpreter's lock for seconds.
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    # The thread is for a pipe that had closed before, and for systems that send no signal for pipes.
    threading.Thread(target=_watch, name="die-with-parent", daemon=True).start()


def _watch() -> None:
    while os.read(0, 1024):
        pass
    # The work is resumed from its last checkpoint; nothing here may delay the end.
    os._exit(ORPHANED)
