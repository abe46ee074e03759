"""A data folder whose models are improved by jobs that run in this process."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hmi.core import JobRecord, ModelId, ModelRecord
from hmi.jobs import improve
from hmi.jobs.model import fine_tune
from hmi.jobs.runtime.context import JobContext
from hmi.jobs.runtime.folders import JobFolder
from hmi.manager import Manager
from tests.hmi.labs.api_world import rows
from tests.hmi.labs.build_lab import attempt

QUICK = {"epochs": 1, "module": {"rank": 2}, "max_length": 32, "lr": 5e-4, "ramps": False}
"""Options with which a first version learns little, so that a second one can be better."""
_LINES = rows(300).splitlines(keepends=True)
ROWS, DEV = b"".join(_LINES[:100]), b"".join(_LINES[100:])
"""Rows to train on, and as many held-out ones as decide by themselves."""


def made(
    manager: Manager, name: str, data: bytes | None = None, task: str = "classification", **options: Any
) -> dict[str, Any]:
    """Create a model, and return its job's result."""
    job = manager.create_model(
        name,
        domain="tiny",
        task=task,
        data=ROWS if data is None else data,
        dev=DEV if data is None else None,
        options={**QUICK, **options},
    )
    return ended(manager, job, fine_tune.run)


def answers_kept(manager: Manager, job: JobRecord) -> Path | None:
    """The file of the first teacher's answers in a job's folder; None if it has not answered yet."""
    return next(folder(manager, job).path.glob("said-0-*.safetensors"), None)


@pytest.fixture(scope="module")
def taught(manager: Manager, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A teacher's answers for ROWS, made by a job that is then stopped at the next step, and resumed."""
    made(manager, "acme.better")
    job = queued(manager, "acme.better")
    assert attempt(manager, job, improve.run, until=lambda: answers_kept(manager, job) is not None) is None
    answers = answers_kept(manager, job)
    assert answers is not None
    return Path(shutil.copy(answers, tmp_path_factory.mktemp("taught") / answers.name))


def lend(manager: Manager, job: JobRecord, answers: Path) -> None:
    """Give a job the answers of another job's teacher to the same texts, so that it needs none of its own."""
    shutil.copy(answers, folder(manager, job).path / answers.name)


def ended(
    manager: Manager, job: JobRecord, body: Callable[[JobContext], dict[str, Any]] = improve.run
) -> dict[str, Any]:
    """Run a job to its end as the runner would, and return its result."""
    result = attempt(manager, job, body)
    assert result is not None
    manager.runner.settle(job.job)
    return result


def model(manager: Manager, name: str) -> ModelRecord:
    return manager.registry.model(ModelId.parse(name))


def queued(manager: Manager, name: str) -> JobRecord:
    """The model's job that is to improve it."""
    improvement = model(manager, name).improvement
    assert improvement is not None
    return manager.registry.job(improvement.job)


def folder(manager: Manager, job: JobRecord) -> JobFolder:
    return JobFolder(manager.settings.data / "jobs", job.job)
