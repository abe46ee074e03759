"""A data folder in which real jobs run."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hmi.config import Settings
from hmi.core import ENDED, JobRecord, TenantRecord, now
from hmi.jobs.runtime.runner import JobRunner
from hmi.manager.tenants import new_key
from hmi.stores.layout import open_layout
from hmi.stores.records.registry import Registry
from tests.waiting import wait_until

BODIES = "tests.hmi.labs.runner_bodies:BODIES"


class Lab:
    """A data folder with one tenant, and runners of its jobs."""

    def __init__(self, data: Path) -> None:
        # A background job of the lowest priority may wait for minutes on a busy machine.
        self.settings = Settings(data=data, background_nice=0)
        self.layout = open_layout(data)
        self.registry = Registry.open(self.layout.registry)
        self.registry.create_tenant(
            TenantRecord(tenant="acme", created=now()), new_key("acme", ("infer",))[0]
        )
        self.runners: list[JobRunner] = []

    def runner(self, workers: int = 1) -> JobRunner:
        self.runners.append(JobRunner(self.registry, self.settings, workers, bodies=BODIES))
        return self.runners[-1]

    def submit(self, runner: JobRunner, do: str, inputs: dict[str, Any] | None = None, **spec: Any) -> str:
        return runner.submit("fine_tune", {"do": do, **spec}, "acme", inputs).job

    def until(self, job: str, done: Callable[[JobRecord], bool], limit_s: float = 40) -> JobRecord:
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            record = self.registry.job(job)
            if done(record):
                return record
            time.sleep(0.02)
        raise AssertionError(
            f"still {self.registry.job(job)}; log: {self.folder(job, 'log.txt').read_text()}"
        )

    def end_of(self, job: str) -> JobRecord:
        return self.until(job, lambda r: r.state in ENDED)

    def counting(self, job: str) -> int:
        """Wait for the job's first checkpoint, and return the id of its process."""
        self.until(job, lambda r: self.folder(job, "checkpoint.json").exists())
        return self.attempts(job)[-1][0]

    def attempts(self, job: str) -> list[tuple[int, int]]:
        lines = (self.settings.data / f"trace-{job}").read_text().splitlines()
        return [(int(pid), int(start)) for pid, start in (line.split() for line in lines)]

    def folder(self, job: str, name: str = "") -> Path:
        return self.layout.jobs / job / name


def gone(pid: int, limit_s: float = 5) -> bool:
    """Whether a process ends within `limit_s`; one that nobody has waited for yet (a zombie) has ended."""

    def ended() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except FileNotFoundError:
            return True

    try:
        wait_until(ended, limit_s)
    except TimeoutError:
        return False
    return True
