"""Verification in child processes, so that a damaged file or disk can kill only the child.

`probe` checks only the catalogue and takes milliseconds; call it before you open a store. `scrub` reads
every byte, optionally at a bounded rate. Neither opens a file of the store in this process, so LMDB's
locks are not affected.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import hmi_kernels

from plot_store.ground import errors, names
from plot_store.ground.arguments import check_number, check_path
from plot_store.ground.errors import Damaged, PlotStoreError, StoreIO
from plot_store.ground.nouns import Damage, VerifyReport

CURE: Final = "restore the store from a copy, or import its exports into a new one"
PACKAGE: Final = Path(__file__).resolve().parents[1]
KERNELS: Final = Path(hmi_kernels.__file__).resolve().parent
# Signals that damaged data can cause. Others come from outside: from a user, or when memory runs out.
_DEADLY: Final = {signal.SIGBUS, signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGFPE}
# Runs one module of the package without the package's own imports, because numba alone takes a second.
_BARE: Final = (
    "import sys, types; package = types.ModuleType('plot_store'); package.__path__ = [sys.argv.pop(1)]; "
    "sys.modules['plot_store'] = package; from plot_store.catalogue.probe import main; main()"
)


@dataclass(frozen=True)
class ScrubProgress:
    """The progress of a scrub."""

    segment: str  # name of the file being read; "" for the catalogue
    done: int  # bytes
    total: int  # bytes


def probe(path: str | Path, *, timeout_s: float = 60.0) -> None:
    """Check a store's catalogue in a child process: structure, free list, every record's checksum.

    Segments are not checked; `scrub` checks them. A store that does not exist yet is sound. Other processes
    may use the store meanwhile. Raises Invalid, Damaged, StoreIO (unreadable, or no answer within timeout_s).
    """
    path = check_path("path", path)
    command = [sys.executable, "-P", "-c", _BARE, str(PACKAGE), str(path)]
    try:
        ran = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise StoreIO(
            f"checking the catalogue of {path} took over {timeout_s:.0f} s: check the disk"
        ) from error
    _check_end("checking the catalogue", path, ran.returncode)
    if ran.returncode < 0:
        raise Damaged(f"the catalogue of {path} kills its reader ({_signal(ran.returncode)}): {CURE}")
    try:
        answer = json.loads(ran.stdout)
    except ValueError:
        raise StoreIO(
            f"checking the catalogue of {path} failed ({_last_line(ran.stderr)}): check memory and the "
            "installation"
        ) from None
    if "damaged" in answer:
        raise Damaged(f"the catalogue of {path} is damaged ({answer['damaged']}): {CURE}")
    if "failed" in answer:
        raise StoreIO(
            f"the catalogue of {path} cannot be read ({answer['failed']}): check the disk and permissions"
        )


def scrub(
    path: str | Path,
    *,
    ref: str | None = None,
    bytes_per_second: float | None = None,
    progress: Callable[[ScrubProgress], None] | None = None,
    silence_s: float = 900.0,
) -> VerifyReport:
    """Run `Store.verify` in a child process.

    If damaged data kills the child, the segment being read is reported as damaged. ref: only the ref's
    retained versions and their ancestors. bytes_per_second: a bound on the rate. silence_s: a child that
    reports nothing for this long is killed, and StoreIO is raised. Raises Invalid, NotFound, Damaged
    (the catalogue), FormatTooNew, StoreIO.
    """
    path = check_path("path", path)
    if bytes_per_second is not None:
        check_number(
            "bytes_per_second", bytes_per_second, "pass a rate above 0, or None for no bound", least=1
        )
    if ref is not None:
        names.check_ref(ref)
    probe(path)
    command = [sys.executable, "-P", "-m", "plot_store.care.scrub_child", str(path)]
    command += ["--ref", ref] if ref is not None else []
    command += ["--rate", str(bytes_per_second)] if bytes_per_second is not None else []
    with tempfile.TemporaryFile() as stderr:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=_environment(),
        )
        try:
            return _follow(path, child, stderr, progress, silence_s)
        finally:
            child.kill()
            child.communicate()


def _follow(
    path: Path,
    child: subprocess.Popen[str],
    stderr: IO[bytes],
    progress: Callable[[ScrubProgress], None] | None,
    silence_s: float,
) -> VerifyReport:
    """Return the child's report, or one that names the segment it was reading when it died.

    Raises the child's error, and StoreIO.
    """
    at = ScrubProgress("", 0, 0)
    silent = threading.Event()
    for message in _messages(child, silence_s, silent):
        if "report" in message:
            return _report(message["report"])
        if "error" in message:
            raise _error(message["error"], message["message"])
        at = ScrubProgress(**message)
        if progress is not None:
            progress(at)
    code = child.wait()
    if silent.is_set():
        where = at.segment or "the catalogue"
        raise StoreIO(
            f"the scrub of {path} stopped answering at {where}: no report for {silence_s:g} s; check the "
            "disk, then scrub again"
        )
    _check_end("the scrub", path, code)
    if code >= 0:
        stderr.seek(0)
        raise StoreIO(
            f"the scrub ended early ({_last_line(stderr.read())}): check memory and the installation"
        )
    what = f"reading it killed the process ({_signal(code)}), and nothing after it was read: check the disk"
    return VerifyReport(0, 0, at.done, (Damage(at.segment, what),))


def _messages(
    child: subprocess.Popen[str], silence_s: float, silent: threading.Event
) -> Iterator[dict[str, Any]]:
    """Yield the child's messages. If none comes for `silence_s`, set `silent` and kill the child."""
    assert child.stdout is not None

    def give_up() -> None:
        silent.set()
        child.kill()

    while True:
        guard = threading.Timer(silence_s, give_up)
        guard.start()
        try:
            line = child.stdout.readline()
        finally:
            guard.cancel()
        if not line.endswith("\n"):
            return
        yield json.loads(line)


def _check_end(doing: str, path: Path, code: int) -> None:
    """Raises StoreIO if a signal from outside ended the child, which says nothing about the store."""
    if code < 0 and -code not in _DEADLY:
        raise StoreIO(f"{doing} of {path} was ended by {_signal(code)}: check memory, then run it again")


def _report(raw: dict[str, Any]) -> VerifyReport:
    damages = tuple(Damage(**damage) for damage in raw.pop("damages"))
    return VerifyReport(**raw, damages=damages)


def _error(kind: str, message: str) -> PlotStoreError:
    """Return the store's error of this kind."""
    waiting: list[type[PlotStoreError]] = [errors.PlotStoreError]
    while waiting:
        found = waiting.pop()
        if found.kind == kind:
            return found(message)
        waiting += found.__subclasses__()
    return PlotStoreError(message)


def _environment() -> dict[str, str]:
    """Return this process's environment, with the paths of this package and the kernels in PYTHONPATH."""
    paths = [str(PACKAGE.parent), str(KERNELS.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _signal(code: int) -> str:
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _last_line(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "no error output"
