"""The jobs and servers of a process' tests are forks of one template, which has imported what they need."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import IO, Any

import pytest

from hmi.config import Settings
from hmi.jobs.runtime.folders import JobFolder
from hmi.jobs.runtime.starter import LINUX, Process, Starter, _environment, _Template
from hmi.jobs.runtime.template import Template

REPO = Path(__file__).parents[1]
SERVING = ("hmi.cli.machine.serve", "hmi.api.process.server", "hmi.engine.engine")
"""What a server imports, beside what jobs need."""


class AnyFolder(Template):
    """A template whose commands say in which data folder a job runs, and with which environment.

    A command with `arguments` starts `hmi` in place of a job. {"began": name, "pid": n} reports each process.
    """

    def _obey(self, command: dict[str, Any]) -> None:
        self._command = command
        super()._obey(command)

    def _start(self, job: str, log: str) -> None:
        super()._start(job, log)
        (pid,) = [pid for pid, name in self._job_of.items() if name == job]
        os.write(self._reports, json.dumps({"began": job, "pid": pid}).encode() + b"\n")

    def _run_job(self, job: str) -> int:
        os.environ.clear()
        os.environ.update(self._command["environment"])
        if "arguments" in self._command:
            return run_command(self._command["arguments"])
        self._data = Path(self._command["data"])
        return super()._run_job(job)


def run_command(arguments: list[str]) -> int:
    """Run `hmi` as a process of its own would."""
    from hmi.cli import main

    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(REPO)
    Starter.many = 1  # a server's first job starts its template, and each further one is a fork of that
    try:
        main(arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else bool(end.code)
    return 0


class Forked:
    """A process that runs `hmi`, with what `subprocess.Popen` has."""

    def __init__(self) -> None:
        self.pid = 0
        self.returncode: int | None = None
        self.began, self.ended = threading.Event(), threading.Event()

    def poll(self) -> int | None:
        return self.returncode if self.ended.is_set() else None

    def wait(self, timeout: float | None = None) -> int:
        if not self.ended.wait(timeout):
            raise subprocess.TimeoutExpired(["hmi"], timeout or 0)
        assert self.returncode is not None, "the template has died"
        return self.returncode

    def send_signal(self, number: int) -> None:
        if not self.ended.is_set():
            with suppress(ProcessLookupError):  # it has just ended, which the template is about to tell
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Shared(_Template):
    """The process of an `AnyFolder`, which outlives its first data folder."""

    module = "tests.forks"

    def __init__(self, settings: Settings) -> None:
        self._commands_run: dict[str, Forked] = {}
        self._names = map("command-{}".format, count())
        super().__init__(settings, None)
        self.settings = settings  # of the job that starts next
        self.starting = threading.Lock()

    def send(self, command: dict[str, object]) -> None:
        if "start" in command and "arguments" not in command:
            command |= {
                "data": str(self.settings.data.absolute()),
                "environment": _environment(self.settings),
            }
        super().send(command)

    def command(self, arguments: list[str], log: Path) -> Forked:
        """Run `hmi` with these arguments, and add what it prints to the log."""
        name, process = next(self._names), Forked()
        self._commands_run[name] = process
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (REPO, REPO / "kernels")))}
        self.send({"start": name, "log": str(log), "arguments": arguments, "environment": env})
        process.began.wait()
        return process

    def _read(self, reports: IO[bytes]) -> None:
        with reports:
            for line in reports:
                report = json.loads(line)
                process = self._commands_run.get(report.get("began", report.get("ended")))
                if process is None:
                    if "ended" in report:
                        self._ended(report["ended"])
                elif "began" in report:
                    process.pid = report["pid"]
                    process.began.set()
                else:
                    process.returncode = report["code"]
                    process.ended.set()
        super()._read(BytesIO())  # the template has died, and with it all that it ran
        for process in self._commands_run.values():
            process.ended.set()
            process.began.set()


_MADE: list[Shared] = []
_MAKING = threading.Lock()


def shared(settings: Settings) -> Shared:
    """The template of this process, which is made if there is none."""
    with _MAKING:
        if not _MADE or not _MADE[-1].alive():
            _MADE.append(Shared(settings))
        return _MADE[-1]


def run_hmi(arguments: list[str], log: Path) -> Forked | subprocess.Popen[bytes]:
    """Run `hmi` with these arguments as a process that adds what it prints to the log."""
    if LINUX:
        return shared(Settings()).command(arguments, log)
    with log.open("ab") as out:
        command = [sys.executable, "-m", "hmi", *arguments]
        return subprocess.Popen(command, cwd=REPO, stdin=subprocess.DEVNULL, stdout=out, stderr=out)


@pytest.fixture(scope="session", autouse=True)
def one_template() -> Iterator[None]:
    """Start each real job as one of several that wait: a process of its own would spend seconds on imports.

    Jobs of `runner_lab`, which have bodies of their own, start as in a server.
    """

    class Sharing(Starter):
        def start(self, folder: JobFolder, job: str, queued: int) -> Process:
            if self._bodies is not None or not LINUX:
                return super().start(folder, job, queued)
            template = shared(self._settings)
            with template.starting:
                template.settings = self._settings
                return template.start(folder, job)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hmi.jobs.runtime.runner.Starter", Sharing)
        yield
    for template in _MADE:
        template.close()


if __name__ == "__main__":
    for module in SERVING:
        import_module(module)
    AnyFolder(Path(sys.argv[1]), None).run()
