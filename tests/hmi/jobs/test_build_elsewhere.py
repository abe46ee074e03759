"""A PLOT that a replica builds is the one that the primary would build. Only the primary publishes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmi.config import Settings
from hmi.core import JobRecord
from hmi.errors import Conflict
from hmi.jobs.plot import build_plot, write_plot
from hmi.jobs.runtime import kept
from hmi.jobs.runtime.context import BUILD, ForPrimary, JobContext, JobStopped
from hmi.jobs.runtime.folders import JobFolder
from hmi.jobs.runtime.process import put_back
from hmi.manager import Manager
from hmi.stores.bucket import Bucket
from hmi.stores.layout import read_json
from plot_store import Remote, Store
from tests.hmi.labs.build_lab import attempt, text, tiny_manager

CORPUS = text(7, 150)


@pytest.fixture(scope="module")
def primary(tiny_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    work = tmp_path_factory.mktemp("servers")
    for manager in tiny_manager(tiny_source, work / "first", bucket=str(work / "bucket")):
        manager.registry.lead("http://first")
        root = manager.registry.root("tiny")
        manager.root_files.share(root.name, root.version)
        yield manager


@pytest.fixture
def replicas(primary: Manager, tmp_path: Path) -> Iterator[list[Manager]]:
    given: dict[str, Any] = {"bucket": primary.settings.bucket, "role": "replica", "teachers": ""}
    opened = [Manager(Settings(data=tmp_path / name, **given)) for name in "bcd"]
    yield opened
    for manager in opened:
        manager.close()


@pytest.fixture
def replica(replicas: list[Manager]) -> Manager:
    return replicas[0]


def taken(server: Manager, job: str) -> JobContext:
    """A server takes a job, and begins an attempt at it."""
    assert server.registry.take_job(job)
    record = server.registry.update_job(
        job, lambda r: r.model_copy(update={"state": "running", "attempts": r.attempts + 1})
    )
    ctx = JobContext(record, server.settings, server.registry)
    ctx.resume()
    assert not JobFolder(ctx.layout.jobs, job, ctx.bucket).missing(record.spec["inputs"])
    return ctx


def hand_over(server: Manager, job: str) -> JobRecord:
    """Build at a replica. Returns the record with which the primary ends the job."""
    ctx = taken(server, job)
    with pytest.raises(ForPrimary) as left:
        build_plot.run(ctx)
    ctx.close()
    return server.registry.update_job(job, left.value.hand_over)


def ended(primary: Manager, job: str) -> dict[str, object]:
    ctx = taken(primary, job)
    try:
        ctx.publish_made()
        return build_plot.run(ctx)
    finally:
        ctx.close()
        primary.registry.update_job(job, lambda r: r.model_copy(update={"state": "succeeded"}))


def same(primary: Manager, one: str, other: str, noise: float = 0.0) -> None:
    """Two versions hold the same. noise: of rows that were computed in other batches."""
    a, b = primary.plots.version(one), primary.plots.version(other)
    assert a.meta["report"] == b.meta["report"]
    assert a.entries == b.entries
    with primary.plots.reader(a.id) as first, primary.plots.reader(b.id) as second:
        for order in (2, 3):
            ngrams = first.ngrams(order)
            assert np.array_equal(ngrams, second.ngrams(order))
            rows = first.get(order, ngrams)[0], second.get(order, ngrams)[0]
            np.testing.assert_allclose(*rows, rtol=0, atol=noise)


def test_a_replica_builds_what_the_primary_would(primary: Manager, replica: Manager) -> None:
    assert attempt(primary, primary.create_domain("tiny/whole", CORPUS, alpha=70))
    job = primary.create_domain("tiny/parts", CORPUS, alpha=70).job
    record = hand_over(replica, job)
    assert (record.state, record.node, record.for_primary, record.attempts) == ("queued", None, True, 0)
    assert "tiny/parts" not in Remote(Bucket(primary.settings.bucket).plots).refs()
    assert "tiny/parts" not in replica.plots.heads()
    assert not replica.registry.take_job(job)
    result = ended(primary, job)
    assert result["version"] == record.made == primary.plots.version("tiny/parts").id
    assert Remote(Bucket(primary.settings.bucket).plots).refs()["tiny/parts"] == record.made
    same(primary, "tiny/whole", "tiny/parts")

    more = text(9, 90)
    assert attempt(primary, primary.update_domain("tiny/whole", more, alpha=70))
    job = primary.update_domain("tiny/parts", more, alpha=70).job
    made = hand_over(replica, job).made
    assert ended(primary, job)["version"] == made
    same(primary, "tiny/whole", "tiny/parts")
    assert [version.id for version in primary.plots.history("tiny/parts")] == [made, record.made]


def test_a_version_is_not_published_onto_another_one_than_it_extends(
    primary: Manager, replica: Manager
) -> None:
    assert attempt(primary, primary.create_domain("tiny/moved", CORPUS, alpha=30))
    first = primary.plots.version("tiny/moved").id
    assert attempt(primary, primary.update_domain("tiny/moved", text(8, 90), alpha=30))
    job = primary.update_domain("tiny/moved", text(9, 90), alpha=30).job
    hand_over(replica, job)
    primary.rollback_domain("tiny/moved", first)
    with pytest.raises(Conflict, match="build it again"):
        ended(primary, job)
    assert primary.plots.version("tiny/moved").id == first


@pytest.mark.parametrize("least", [0.0, 0.2])
def test_servers_go_on_with_each_others_build(
    primary: Manager, replicas: list[Manager], least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt is at another server, and ends as if the server had died. Some come back later."""
    monkeypatch.setattr(write_plot, "BATCH", 16)
    kwdefaults = Store.writer.__kwdefaults__
    assert kwdefaults is not None
    monkeypatch.setitem(kwdefaults, "segment_bytes", 1 << 14)  # about 80 rows
    monkeypatch.setattr(kept, "_SHARE", 1e9)
    options, domain = {"min_difference": least}, f"tiny/again{int(least > 0)}"
    assert attempt(primary, primary.create_domain(f"{domain}-whole", CORPUS, alpha=70, options=options))
    job = primary.create_domain(domain, CORPUS, alpha=70, options=options).job
    records, finished = [], None
    for turn in range(40):
        server = replicas[turn % 3]
        ctx = taken(server, job)
        left, told = [8 + 8 * turn], ctx.progress  # durable rows are gone through again

        def progress(*given: Any, told: Any = told, left: list[int] = left, **more: Any) -> None:
            left[0] -= more["phase"] == "representations"
            if left[0] < 0:
                raise JobStopped
            told(*given, **more)

        ctx.progress = progress  # type: ignore[method-assign]
        try:
            build_plot.run(ctx)
        except JobStopped:
            put_back(server.registry, job)
            primary.registry.update_job(job, lambda r: r.model_copy(update={"stalled": 0}))
        except ForPrimary as over:
            finished = server.registry.update_job(job, over.hand_over).made
            break
        finally:
            ctx.close()
        records.append(read_json(ctx.folder / BUILD))
    assert finished is not None
    grown = [len(record["segments"]) for record in records if isinstance(record, dict)]
    assert grown == sorted(grown)
    assert grown[-1] > 3
    assert ended(primary, job)["version"] == finished
    same(primary, f"{domain}-whole", domain, noise=1e-5)
    made = primary.plots.version(domain)
    rows = sum(s.count for s in made.segments if s.kind == "rows")
    assert rows == made.entries[2] + made.entries[3], "nothing was written twice"
