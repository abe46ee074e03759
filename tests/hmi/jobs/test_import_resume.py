"""An import of a root that is interrupted within a phase and resumed makes the same root, bit by bit."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hmi.config import Settings
from hmi.core import JobRecord
from hmi.jobs.root import import_root
from hmi.jobs.runtime.context import JobContext
from hmi.manager import Manager
from hmi.model.files import read_checkpoint
from hmi.model.sources.root import read_root_info
from hmi.training.root.phases import Keeper
from tests.hmi.labs.build_lab import attempt, text
from tests.tiny import write_tiny_mpnet

STEPS = {"steps": 5, "upper_steps": 4, "joint_steps": 3}
EACH_STEP = {**STEPS, "checkpoint_s": 0}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_mpnet(tmp_path_factory.mktemp("source") / "tiny-mpnet")


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    """A manager on an empty data folder, which runs no jobs."""
    opened = Manager(Settings(data=tmp_path_factory.mktemp("resume") / "data", job_workers=0))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def whole(manager: Manager, source: Path) -> dict[str, str]:
    """The files of a root whose import was not interrupted."""
    assert attempt(manager, start(manager, source, "whole", STEPS), import_root.run)
    return files_of(manager, "whole")


def start(manager: Manager, source: Path, name: str, options: dict[str, Any]) -> JobRecord:
    texts = {"text-0": text(1, 280)}
    return manager.import_root(name, str(source), split=2, texts=texts, alpha=1, options=options)


def files_of(manager: Manager, name: str) -> dict[str, str]:
    """The SHA-256 of each of a root's files."""
    version = manager.registry.root(name).version
    return dict(read_root_info(manager.settings.data / "roots" / name / version).files)


def test_a_stop_after_any_step_changes_no_bit(manager: Manager, source: Path, whole: dict[str, str]) -> None:
    job = start(manager, source, "parts", EACH_STEP)
    steps: list[tuple[str, int]] = []

    def body(ctx: JobContext) -> dict[str, Any]:
        told = ctx.progress

        def progress(step: int, total: int, *, phase: str, loss: float | None = None) -> None:
            if loss is not None:
                steps.append((phase, step))
            told(step, total, phase=phase, loss=loss)

        ctx.progress = progress  # type: ignore[method-assign]
        return import_root.run(ctx)

    attempts = 1
    # Each attempt is stopped at its first step, from the second attempt on without any progress but that.
    while attempt(manager, job, body, calls=1 if attempts == 1 else 0 if len(steps) < 12 else 10**6) is None:
        attempts += 1
    assert attempts > 12
    phases = [("distillation", i + 1) for i in range(5)]
    phases += [("co-training of the upper layers", i + 1) for i in range(4)]
    phases += [("training of all layers together", i + 1) for i in range(3)]
    assert steps == phases, "each step is taken once"
    assert files_of(manager, "parts") == whole


def test_a_killed_process_leaves_a_job_that_ends_as_if_it_had_lived(
    manager: Manager, source: Path, whole: dict[str, str]
) -> None:
    job = start(manager, source, "killed", EACH_STEP)
    folder = manager.settings.data / "jobs" / job.job
    command = [sys.executable, "-m", "hmi.jobs", "--data", str(manager.settings.data), job.job]

    def run() -> int:
        """Run the job in a process of its own, which ends with this one."""
        bodies = ["--bodies", "tests.hmi.labs.import_bodies:BODIES"]
        with subprocess.Popen([*command, *bodies], stdin=subprocess.PIPE) as child:
            return child.wait(timeout=120)

    assert run() == -signal.SIGKILL
    kept = {p.name for p in folder.glob("*checkpoint*")}
    within = "checkpoint-within-trained.safetensors"
    assert kept == {"checkpoint-distilled.safetensors", within, f".{within}.0.tmp"}
    found = read_checkpoint(folder / within)
    assert found is not None
    assert found[1] == {"step": 1, "steps": 4}
    assert run() == 0
    assert manager.registry.job(job.job).state == "succeeded"
    assert list(folder.glob("*checkpoint*")) == []
    assert files_of(manager, "killed") == whole


def test_a_checkpoint_is_written_only_when_it_is_due(tmp_path: Path) -> None:
    written: list[int] = []
    path = tmp_path / "checkpoint.safetensors"
    keeper = Keeper(path, 3600, lambda: written.append(1))
    keeper.keep({"step": 1}, dict)
    assert (written, keeper.read()) == ([], None)
    always = Keeper(path, 0, lambda: written.append(1))
    for step in (1, 2):
        always.keep({"step": step}, dict)
    assert len(written) == 2
    assert always.read() == ({}, {"step": 2})
    assert list(tmp_path.iterdir()) == [path]
