"""A corpus that several servers count in parts has the counts, byte for byte, of one that counts alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hmi.config import Settings
from hmi.core import JobRecord
from hmi.errors import InvalidData, JobCancelled
from hmi.jobs.plot import build_plot, count_part
from hmi.jobs.runtime.context import JobContext, JobStopped
from hmi.jobs.runtime.process import put_back
from hmi.manager import Manager
from hmi.stores.bucket import Bucket
from hmi.stores.records.job_table import asked_to_stop
from hmi.stores.records.nodes import Places
from tests.hmi.jobs.test_build_elsewhere import CORPUS, primary, same, taken
from tests.hmi.labs.build_lab import attempt, tiny_manager

__all__ = ["primary"]

Act = Callable[[], object]


@pytest.fixture
def others(primary: Manager, tmp_path: Path) -> Iterator[list[Manager]]:
    given: dict[str, Any] = {"bucket": primary.settings.bucket, "role": "replica", "teachers": ""}
    opened = [Manager(Settings(data=tmp_path / name, **given)) for name in "bc"]
    for name, manager in zip("abc", [primary, *opened], strict=True):
        manager.registry.enter(f"http://{name}")
    yield opened
    for manager in opened:
        primary.registry.leave(manager.registry.node())
        manager.close()


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The parts that this process counts, by the names of their folders."""
    counted: list[str] = []
    real = count_part.count_texts

    def count(tokenizer: Any, texts: Any, n: int, folder: Path, *more: Any) -> Any:
        counted.append(folder.parent.name)
        return real(tokenizer, texts, n, folder, *more)

    monkeypatch.setattr(count_part, "count_texts", count)
    return counted


def build(
    server: Manager, job: JobRecord, acts: list[Act], while_waiting: Act = lambda: None
) -> dict[str, Any]:
    """Build in parts of a kibibyte. After each of the first parts is queued, the next act is done."""
    ctx = JobContext(job, replace(server.settings, count_part_bytes=1024), server.registry)
    told = ctx.progress

    def progress(*given: Any, phase: str, **more: Any) -> None:
        if phase == "cutting the corpus" and acts:
            acts.pop(0)()
        if phase == "counting n-grams":
            while_waiting()
        told(*given, phase=phase, **more)

    ctx.progress = progress  # type: ignore[method-assign]
    try:
        return build_plot.run(ctx)
    finally:
        ctx.close()


def parts_of(server: Manager, job: str) -> list[JobRecord]:
    found = [one for one in server.registry.jobs() if one.kind == "count_part" and one.spec["build"] == job]
    return sorted(found, key=lambda one: int(one.job.rpartition("-")[2]))


def begin(server: Manager, job: str, number: int) -> JobContext:
    server.registry.catch_up()
    return taken(server, parts_of(server, job)[number].job)


def count(server: Manager, job: str, number: int) -> None:
    ctx = begin(server, job, number)
    result = count_part.run(ctx)
    ctx.close()
    change = {"state": "succeeded", "result": result}
    server.registry.update_job(ctx.job.job, lambda r: r.model_copy(update=change))


def end(server: Manager, job: str, state: str) -> None:
    server.registry.update_job(job, lambda r: r.model_copy(update={"state": state}))


def counts(server: Manager, job: str) -> dict[str, bytes]:
    folder = server.settings.data / "jobs" / job / "counts"
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def is_clean(server: Manager, job: str) -> bool:
    """Whether nothing is left of the parts."""
    left = [] if not server.settings.bucket else Bucket(server.settings.bucket).names("jobs")
    assert not [name for name in left if "part" in name]
    jobs = server.settings.data / "jobs"
    assert not (jobs / job / "parts").exists()
    assert not [folder.name for folder in jobs.iterdir() if folder.name.startswith(f"{job}-")]
    return not parts_of(server, job)


def test_who_counts_a_part_does_not_matter(primary: Manager, others: list[Manager], here: list[str]) -> None:
    """One is counted elsewhere; one begun by a server that dies, one taken and not begun, one failed."""
    whole = primary.create_domain("tiny/alone", CORPUS, alpha=70)
    assert attempt(primary, whole)
    assert not here, "a small corpus is not cut"
    job, (b, c) = primary.create_domain("tiny/shared", CORPUS, alpha=70), others
    names: list[str] = []

    def die() -> None:
        if {part.job for part in parts_of(primary, job.job) if part.state != "succeeded"} == {names[1]}:
            put_back(primary.registry, names[1], of=b.registry.node())

    acts: list[Act] = [
        lambda: count(b, job.job, 0),
        lambda: begin(b, job.job, 1).close(),
        lambda: c.registry.catch_up() or c.registry.take_job(parts_of(c, job.job)[2].job),
        lambda: end(c, begin(c, job.job, 3).job.job, "failed"),
        lambda: names.extend(part.job for part in parts_of(primary, job.job)),
    ]
    assert build(primary, job, acts, die)
    assert here[0] == names[0]
    assert sorted(here[1:]) == sorted(set(here) - {names[0]}), "each of the others was counted once, here"
    assert {names[1], names[2], names[3]} < set(here)
    assert counts(primary, job.job) == counts(primary, whole.job)
    end(primary, job.job, "succeeded")
    same(primary, "tiny/alone", "tiny/shared")
    assert is_clean(primary, job.job)


def test_a_build_that_goes_on_finds_what_was_counted(
    primary: Manager, others: list[Manager], here: list[str]
) -> None:
    job = primary.create_domain("tiny/again", CORPUS, alpha=70)

    def stop() -> None:
        if len(here) == 4:
            raise JobStopped

    with pytest.raises(JobStopped):
        build(primary, job, [lambda: count(others[0], job.job, 0)], stop)
    counted = here[:3]
    here.clear()
    assert build(primary, job, [])
    assert not set(here) & set(counted)
    assert len(here) + len(counted) > 5
    end(primary, job.job, "succeeded")
    assert is_clean(primary, job.job)


def test_a_cancelled_build_leaves_no_parts(primary: Manager, others: list[Manager]) -> None:
    job = primary.create_domain("tiny/cancelled", CORPUS, alpha=70)

    def cancel() -> None:
        if all(part.state == "running" for part in parts_of(primary, job.job)):
            primary.registry.update_job(job.job, asked_to_stop)

    primary.registry.update_job(job.job, lambda r: r.model_copy(update={"state": "running"}))
    with pytest.raises(JobCancelled):
        build(primary, job, [lambda: begin(others[0], job.job, 0).close()], cancel)
    assert len(parts_of(primary, job.job)) == 1
    end(primary, job.job, "cancelled")
    assert is_clean(primary, job.job)
    others[0].registry.catch_up()
    assert not parts_of(others[0], job.job), "the process that counts it finds no job, and ends"


def test_a_build_that_fails_leaves_no_parts(
    primary: Manager, others: list[Manager], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = count_part.count_texts

    def fail(tokenizer: Any, texts: Any, n: int, folder: Path, *more: Any) -> Any:
        if [folder.parent.name] == names[2:3]:
            raise InvalidData("a text is wrong")
        return real(tokenizer, texts, n, folder, *more)

    monkeypatch.setattr(count_part, "count_texts", fail)
    job, names = primary.create_domain("tiny/failed", CORPUS, alpha=70), list[str]()
    acts: list[Act] = [
        lambda: count(others[0], job.job, 0),
        lambda: begin(others[0], job.job, 1).close(),
        lambda: names.extend(part.job for part in parts_of(primary, job.job)),
    ]
    with pytest.raises(InvalidData):
        build(primary, job, acts)
    end(primary, job.job, "failed")
    assert is_clean(primary, job.job)


def test_parts_are_cut_only_if_another_server_takes_jobs(primary: Manager, others: list[Manager]) -> None:
    def is_cut(name: str) -> bool:
        job = primary.create_domain(f"tiny/{name}", CORPUS, alpha=70)
        cut: list[object] = []
        assert build(primary, job, [lambda: cut.extend(parts_of(primary, job.job))])
        end(primary, job.job, "succeeded")
        return bool(cut)

    for other in others:  # as primaries they would run jobs
        other.registry.enter(f"http://{other.registry.node()}", Places(primary=4, replica=0))
    primary.registry.catch_up()
    assert not is_cut("idle")
    others[1].registry.enter("http://c", Places(primary=0, replica=1))
    primary.registry.catch_up()
    assert is_cut("helped")


def test_jobs_of_one_server_count_in_parts(tiny_source: Path, tmp_path: Path, here: list[str]) -> None:
    """Without a bucket, counts go from one job's folder to the other's."""
    with closing(tiny_manager(tiny_source, tmp_path / "data")) as opened:
        manager = next(opened)
        whole = manager.create_domain("tiny/alone", CORPUS, alpha=70)
        assert attempt(manager, whole)
        job = manager.create_domain("tiny/shared", CORPUS, alpha=70)
        two = Manager(replace(manager.settings, job_workers=2))
        assert build(two, job, [lambda: count(manager, job.job, 0), lambda: count(manager, job.job, 1)])
        two.close()
        assert len(here) == len(set(here)) > 4
        assert counts(manager, job.job) == counts(manager, whole.job)
        end(manager, job.job, "succeeded")
        assert is_clean(manager, job.job)
