"""Ends a job's process when its parent dies.

This module imports only the standard library, so that it takes effect at once. A job's other
imports take seconds on a busy machine, and the server may be killed meanwhile.
"""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import threading
from typing import Final

ORPHANED: Final = 76
"""Exit code: the parent died. If the kernel's signal comes first, the process ends by SIGKILL (elsewhere than
on Linux by SIGIO) instead."""


def die_with_parent() -> None:
    """Arrange for this process to end at once when its parent dies. Call it once.

    The parent holds the other end of the pipe that is this process's standard input. If standard
    input is not a pipe, this does nothing. PR_SET_PDEATHSIG does not serve here: it fires when the
    parent's thread that started the job ends, and the supervisor of a stopping server ends before
    its jobs have stopped.
    """
    if not stat.S_ISFIFO(os.fstat(0).st_mode):
        return
    # The kernel ends the process when the pipe closes, even while a library holds the interpreter's lock.
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(0, fcntl.F_SETSIG, signal.SIGKILL)  # SIGIO would wait while a background job is paused
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    # The thread handles a pipe that is closed already, and systems that send no signal for pipes.
    threading.Thread(target=_watch, name="die-with-parent", daemon=True).start()


def _watch() -> None:
    while os.read(0, 1024):
        pass
    # End without clean-up, which could take time: the job is resumed from its last checkpoint.
    os._exit(ORPHANED)
