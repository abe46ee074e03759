"""Compilation of kernels that numba's cache does not hold yet, in processes of their own.

LLVM ends its process where it cannot compile, so a server must not compile in its own.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress

from hmi.errors import Unavailable

log = logging.getLogger("hmi.execution")
ENDED_S = 0.1
"""Seconds between two checks, during the compilation, of whether the process is ending."""
NEVER = threading.Event()
CURE = (
    "if LLVM refused this processor, set NUMBA_CPU_NAME=generic; if the status is -9, the system ended it, "
    "mostly for want of memory"
)


class Ended(Exception):
    """The process ends before the work is done."""


def compile_missing(entries: Sequence[str], ended: threading.Event = NEVER) -> None:
    """Compile those of the entries that are not in the cache, all at once. See `hmi_kernels.compile`.

    Raises RuntimeError with the reason if one cannot be compiled, Ended once `ended` is set.
    """
    missing = [entry for entry in entries if not is_compiled(entry)]
    with ExitStack() as stack:
        children = [stack.enter_context(_begin(entry)) for entry in missing]
        for child in children:
            stack.callback(child.kill)
        for child in children:
            _await(child, ended)


def compile_all(ended: threading.Event = NEVER, *, generates: bool = False) -> None:
    """Compile all that answers need, and log it. Does nothing if it was compiled before.

    generates: whether language models' roots answer, which need kernels of their own. If layers cannot be
    compiled, logs the reason: torch runs them then. Raises Unavailable if anything else cannot, since the
    first text would compile it in this process.
    """
    from hmi_kernels.compile import ENTRIES, GENERATING, NEEDED  # numba, which takes a third of a second

    wanted = [entry for entry in ENTRIES if generates or entry not in GENERATING]
    if all(map(is_compiled, wanted)):
        return
    log.info(
        "compiling for this processor: it usually takes half a minute, and happens once for each "
        "installation of HMI"
    )
    try:
        compile_missing(wanted, ended)
    except Ended:
        log.info("the compilation is given up: the process ends first")
    except RuntimeError as error:
        if not all(map(is_compiled, NEEDED)):
            raise Unavailable(f"{error}; HMI cannot serve without them: {CURE}") from error
        log.error("%s", error)
    else:
        log.info("compiled")


def is_compiled(entry: str) -> bool:
    """Return whether an entry was compiled before, so that it loads in less than a second."""
    from hmi_kernels import jit

    return jit.kept(entry)


def _begin(entry: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hmi_kernels.compile", entry],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _await(child: subprocess.Popen[str], ended: threading.Event) -> None:
    said: str | None = None
    while said is None:
        with suppress(subprocess.TimeoutExpired):
            _, said = child.communicate(timeout=ENDED_S)
        if said is None and ended.is_set():
            raise Ended
    if child.returncode:
        last = (said.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"the kernels cannot be compiled here (exit status {child.returncode}: {last})")
