"""The jobs of all tests of a process are forks of one template, which has imported what they need."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hmi.config import Settings
from hmi.jobs.runtime.folders import JobFolder
from hmi.jobs.runtime.starter import LINUX, Process, Starter, _environment, _Template
from hmi.jobs.runtime.template import Template


class AnyFolder(Template):
    """A template whose commands say in which data folder a job runs, and with which environment."""

    def _obey(self, command: dict[str, Any]) -> None:
        self._command = command
        super()._obey(command)

    def _run_job(self, job: str) -> int:
        os.environ.clear()
        os.environ.update(self._command["environment"])
        self._data = Path(self._command["data"])
        return super()._run_job(job)


class Shared(_Template):
    """The process of an `AnyFolder`, which outlives its first data folder."""

    module = "tests.forks"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, None)
        self.settings = settings  # of the job that starts next
        self.starting = threading.Lock()

    def send(self, command: dict[str, object]) -> None:
        if "start" in command:
            command |= {
                "data": str(self.settings.data.absolute()),
                "environment": _environment(self.settings),
            }
        super().send(command)


@pytest.fixture(scope="session", autouse=True)
def one_template() -> Iterator[None]:
    """Start each real job as one of several that wait: a process of its own would spend seconds on imports.

    Jobs of `runner_lab`, which have bodies of their own, start as in a server.
    """
    made: list[Shared] = []

    class Sharing(Starter):
        def start(self, folder: JobFolder, job: str, queued: int) -> Process:
            if self._bodies is not None or not LINUX:
                return super().start(folder, job, queued)
            if not made or not made[-1].alive():
                made.append(Shared(self._settings))
            with made[-1].starting:
                made[-1].settings = self._settings
                return made[-1].start(folder, job)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hmi.jobs.runtime.runner.Starter", Sharing)
        yield
    for template in made:
        template.close()


if __name__ == "__main__":
    AnyFolder(Path(sys.argv[1]), None).run()
