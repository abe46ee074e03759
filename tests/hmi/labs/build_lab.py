"""A data folder with a tiny root, and jobs that run in this process."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hmi.config import Settings
from hmi.core import JobRecord
from hmi.jobs.plot import build_plot
from hmi.jobs.root import import_root
from hmi.jobs.runtime.context import JobContext, JobStopped
from hmi.manager import Manager
from plot_store import VersionInfo
from tests.tiny import random_texts


def text(seed: int, count: int = 60) -> bytes:
    return "\n".join(random_texts(count, seed)).encode()


def tiny_manager(source: Path, data: Path, **settings: Any) -> Generator[Manager]:
    """A manager whose root `tiny` has a PLOT of its own; closed after use.

    Without further settings its folder is a copy of one that is made once and lies beside the source.
    """
    given = Settings(data=data, job_workers=0, teachers="", **settings)
    if settings:
        opened = _imported(given, source)
    else:
        first = source.parent / "imported"
        if not first.exists():
            _imported(replace(given, data=first), source).close()
        shutil.copytree(first, data)
        opened = Manager(given)
    yield opened
    opened.close()


def _imported(settings: Settings, source: Path) -> Manager:
    opened = Manager(settings)
    few = {"steps": 2, "upper_steps": 1}
    job = opened.import_root("tiny", str(source), texts={"text-0": text(1, 280)}, alpha=60, options=few)
    assert attempt(opened, job, import_root.run)
    return opened


def attempt(
    manager: Manager,
    job: JobRecord,
    body: Callable[[JobContext], dict[str, Any]] = build_plot.run,
    calls: int = 10**6,
    until: Callable[[], bool] = lambda: False,
) -> dict[str, Any] | None:
    """Run a job until its `progress` was called `calls` times, or is called when `until` is true.

    Returns its result, or None where it was stopped.
    """
    torch.manual_seed(0)  # pretraining draws the head that it throws away
    ctx, left = JobContext(job, manager.settings, manager.registry), calls
    told = ctx.progress

    def progress(*given: Any, **more: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0 or until():
            raise JobStopped
        told(*given, **more)

    ctx.progress = progress  # type: ignore[method-assign]
    try:
        result = body(ctx)
    except JobStopped:
        return None
    finally:
        ctx.close()
    manager.registry.update_job(job.job, lambda r: r.model_copy(update={"state": "succeeded"}))
    return result


def run(manager: Manager, job: JobRecord) -> dict[str, Any]:
    """Run a root's import or a build to its end, and return its result."""
    ctx = JobContext(job, manager.settings, manager.registry)
    manager.registry.update_job(job.job, lambda r: r.model_copy(update={"state": "running"}))
    try:
        return (import_root.run if job.kind == "import_root" else build_plot.run)(ctx)
    finally:
        ctx.close()
        manager.registry.update_job(job.job, lambda r: r.model_copy(update={"state": "succeeded"}))


def create(manager: Manager, name: str, corpus: bytes, **spec: Any) -> tuple[dict[str, Any], VersionInfo]:
    result = attempt(manager, manager.create_domain(name, corpus, **spec))
    assert result is not None
    return result, manager.plots.version(name)


def folder(manager: Manager) -> Path:
    return manager.settings.data / "roots" / "tiny" / manager.registry.root("tiny").version
