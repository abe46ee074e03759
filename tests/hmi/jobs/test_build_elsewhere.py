"""A PLOT that a replica builds is the one that the primary would build. Only the primary publishes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hmi.config import Settings
from hmi.core import JobRecord
from hmi.errors import Conflict
from hmi.jobs.plot import build_plot
from hmi.jobs.runtime.context import ForPrimary, JobContext
from hmi.jobs.runtime.folders import JobFolder
from hmi.manager import Manager
from hmi.stores.bucket import Bucket
from plot_store import Remote
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
def replica(primary: Manager, tmp_path: Path) -> Iterator[Manager]:
    place = primary.settings.bucket
    manager = Manager(
        Settings(data=tmp_path / "b", bucket=place, role="replica", replica_jobs=1, teachers="")
    )
    yield manager
    manager.close()


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


def same(primary: Manager, one: str, other: str) -> None:
    a, b = primary.plots.version(one), primary.plots.version(other)
    assert a.meta["report"] == b.meta["report"]
    assert a.entries == b.entries
    with primary.plots.reader(a.id) as first, primary.plots.reader(b.id) as second:
        for order in (2, 3):
            ngrams = first.ngrams(order)
            assert np.array_equal(ngrams, second.ngrams(order))
            np.testing.assert_array_equal(first.get(order, ngrams)[0], second.get(order, ngrams)[0])


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
