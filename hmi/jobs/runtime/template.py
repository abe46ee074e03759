"""A process that has imported what jobs need, and forks one process for each job.

Importing torch takes longer than training a small model. So while several jobs wait, they start as forks of
this process: each job still has a process of its own, whose death harms no other. The template opens no store
and starts no thread, since neither survives a fork. It ends when its standard input closes, and the kernel
then ends its forks. It needs Linux.

Standard input has commands, standard output has reports, both as JSON, one a line:
{"start": job, "log": path}, {"signal": job, "number": n} -> {"ended": job, "code": n}.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1
READ = 1 << 16


class Template:
    """The loop of the process. `data` is the data folder, `bodies` as for `hmi.jobs.bodies.find_bodies`."""

    def __init__(self, data: Path, bodies: str | None) -> None:
        self._data, self._bodies = data, bodies
        self._job_of: dict[int, str] = {}  # process -> job
        self._input = b""
        self._reports = os.dup(1)
        os.dup2(2, 1)  # what an import prints must not look like a report
        self._wake, wake = os.pipe()
        for fd in (self._wake, wake):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def run(self) -> None:
        """Serve commands until standard input closes."""
        from hmi.jobs.bodies import preload

        preload(self._bodies)
        gc.freeze()  # so that a fork's collections do not copy the pages of all these objects
        while True:
            ready, _, _ = select.select([0, self._wake], [], [])
            if self._wake in ready:
                with suppress(BlockingIOError):
                    os.read(self._wake, READ)
            self._reap()
            if 0 in ready:
                read = os.read(0, READ)
                if not read:
                    return
                self._input += read
                *lines, self._input = self._input.split(b"\n")
                for line in lines:
                    self._obey(json.loads(line))

    def _obey(self, command: dict[str, Any]) -> None:
        if "start" in command:
            self._start(command["start"], command["log"])
            return
        for process, job in self._job_of.items():
            if job == command["signal"]:
                os.kill(
                    process, command["number"]
                )  # it is our child, and not reaped: no other has its number

    def _start(self, job: str, log: str) -> None:
        template = os.getpid()
        process = os.fork()
        if process == 0:
            self._become(job, log, template)
        self._job_of[process] = job

    def _become(self, job: str, log: str, template: int) -> NoReturn:
        """Run the job in this process, a fork of the template, and end the process."""
        code = 1
        try:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != template:  # it has ended before the call above
                os._exit(1)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            for fd in (self._wake, self._reports):
                os.close(fd)
            _redirect(log)
            code = self._run_job(job)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _run_job(self, job: str) -> int:
        from hmi.config import Settings
        from hmi.errors import HmiError
        from hmi.jobs.bodies import find_bodies
        from hmi.jobs.runtime.process import run_job

        try:
            return run_job(Settings.from_env(data=self._data), job, find_bodies(self._bodies))
        except HmiError as error:
            sys.stderr.write(f"{error.kind}: {error.message}\n")
            return 1

    def _reap(self) -> None:
        while self._job_of:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                return
            report = {"ended": self._job_of.pop(process), "code": os.waitstatus_to_exitcode(status)}
            os.write(self._reports, json.dumps(report).encode() + b"\n")


def _redirect(log: str) -> None:
    """Read nothing, and write to the job's log."""
    for path, flags, fds in ((os.devnull, os.O_RDONLY, (0,)), (log, os.O_WRONLY | os.O_APPEND, (1, 2))):
        opened = os.open(path, flags | os.O_CREAT, 0o644)
        for fd in fds:
            os.dup2(opened, fd)
        os.close(opened)


if __name__ == "__main__":
    Template(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None).run()
