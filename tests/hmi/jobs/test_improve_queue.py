"""Which models get a background job, what it takes of the tenant's limits, and how it ends with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hmi.config import Settings
from hmi.core import JobRecord, ModelId, now
from hmi.errors import QuotaExceeded
from hmi.jobs import improve
from hmi.jobs.model import fine_tune
from hmi.jobs.runtime.context import JobContext
from hmi.manager import Manager
from hmi.stores.records import job_table
from tests.hmi.labs.api_world import rows
from tests.hmi.labs.build_lab import attempt, tiny_manager
from tests.hmi.labs.improve_lab import QUICK, ended, folder, made, model, queued

FEW = rows(40)


@pytest.fixture(scope="module")
def manager(tiny_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    for opened in tiny_manager(tiny_source, tmp_path_factory.mktemp("queue") / "data"):
        opened.create_tenant("acme")
        yield opened


def fresh(manager: Manager, tenant: str, **limits: int) -> str:
    """The name of a new model of a new tenant."""
    manager.create_tenant(tenant)
    manager.set_tenant(tenant, limits=limits)
    return f"{tenant}.m"


def test_switches_turn_it_off(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings(data=manager.settings.data).improve, "it is on by default"
    assert made(manager, "acme.off", FEW, improve=False)["improving"] is None
    assert made(manager, "acme.on", FEW, improve=True)["improving"] is not None
    off = Settings(data=manager.settings.data, job_workers=0, improve=False)
    monkeypatch.setattr(manager, "settings", off)
    assert made(manager, "acme.none", FEW)["improving"] is None
    # One that was queued before ends without trying anything.
    result = ended(manager, queued(manager, "acme.on"))
    assert (result["tried"], result["reason"]) == ([], "improving was switched off since")


def test_models_without_rows_and_held_back_versions_get_none(manager: Manager) -> None:
    job = manager.create_model("acme.embedding", domain="tiny", task="embedding")
    ended(manager, job, fine_tune.run)
    made(manager, "acme.back", FEW)
    first = queued(manager, "acme.back")
    update = manager.update_model("acme.back", data=FEW, options={"epochs": 1}, publish="never")
    assert ended(manager, update, fine_tune.run)["improving"] is None
    assert model(manager, "acme.embedding").improvement is None
    assert queued(manager, "acme.back") == first, "the version that answers is still worth improving"


def test_ramps_stop_it_and_queue_no_other(manager: Manager) -> None:
    made(manager, "acme.ramps", FEW)
    job = queued(manager, "acme.ramps")
    ramps = manager.train_ramps("acme.ramps", unlabelled=FEW)
    assert "improving" not in ended(manager, ramps, fine_tune.run)
    assert (queued(manager, "acme.ramps").job, queued(manager, "acme.ramps").state) == (job.job, "cancelled")


def test_rows_go_with_the_model_and_with_the_tenant(manager: Manager) -> None:
    made(manager, fresh(manager, "leaver"), FEW)
    made(manager, "leaver.other", FEW)
    one, other = queued(manager, "leaver.m"), queued(manager, "leaver.other")
    manager.delete_model("leaver.m")
    assert manager.registry.job(one.job).state == "cancelled"
    assert not folder(manager, one).input.exists()
    assert folder(manager, other).input.exists()
    manager.delete_tenant("leaver")
    assert not folder(manager, other).path.exists()
    assert manager.registry.background_jobs("queued") == [
        found for found in manager.registry.background_jobs("queued") if found[0] != "leaver"
    ]


def test_a_cancelled_job_leaves_the_model_as_it_is(manager: Manager) -> None:
    made(manager, "acme.cancelled", FEW)
    job = queued(manager, "acme.cancelled")
    assert manager.cancel_job(job.job).state == "cancelled"
    assert not folder(manager, job).input.exists()
    assert model(manager, "acme.cancelled").current == 1


def test_rows_count_in_the_room_but_keep_no_work_from_it(manager: Manager) -> None:
    name = fresh(manager, "small")
    first = made(manager, name, FEW)
    stored = manager.registry.rooms.stored("small")
    assert stored.row_bytes == len(FEW)
    assert stored.bytes == first["bytes"] + len(FEW)
    manager.set_tenant("small", limits={"bytes": 2 * first["bytes"] + len(FEW)})
    # The second model fits, although its bytes and those of all rows do not.
    assert made(manager, "small.second", FEW)["improving"] is None
    assert manager.registry.rooms.stored("small").models == 2
    result = ended(manager, queued(manager, name))
    assert "stores" in result["reason"]
    assert result["tried"] == []
    assert manager.registry.rooms.stored("small").row_bytes == 0


def test_it_counts_neither_as_a_live_job_nor_as_one_that_was_begun(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = fresh(manager, "busy")
    made(manager, name, FEW)
    assert queued(manager, name).state == "queued"
    monkeypatch.setattr(job_table, "PER_DAY", 2)
    given: dict[str, Any] = {"domain": "tiny", "task": "classification", "data": FEW, "options": QUICK}
    manager.create_model("busy.a", job_limit=1, **given)
    with pytest.raises(QuotaExceeded, match="1 jobs queued"):
        manager.create_model("busy.b", job_limit=1, **given)
    with pytest.raises(QuotaExceeded, match="within a day"):
        manager.create_model("busy.b", job_limit=9, **given)


def test_counts_and_lists_know_it(manager: Manager) -> None:
    made(manager, "acme.listed", FEW)
    registry = manager.registry
    job = queued(manager, "acme.listed")
    assert job.job in [record.job for record in registry.jobs(state="queued")]
    page, _ = registry.page_of_jobs(None, "queued", "improve", None, 100)
    assert job.job in [record.job for record in page]
    waiting = registry.background_jobs("queued")
    assert ("acme", job.job) in waiting
    assert registry.count_background_jobs()["queued"] == len(waiting)
    assert job.job not in [record.job for record in registry.live_jobs(behind=False)]


def test_a_killed_training_hands_its_rows_over_once(manager: Manager) -> None:
    job = manager.create_model(
        "acme.once", domain="tiny", task="classification", data=FEW, options={"epochs": 1, "ramps": False}
    )
    first, again = (attempt(manager, job, fine_tune.run) for _ in range(2))
    assert first is not None
    assert again is not None
    assert first["improving"] == again["improving"] == queued(manager, "acme.once").job
    handed = folder(manager, queued(manager, "acme.once")).input / "data"
    assert handed.stat().st_nlink == 2, "the rows are on the disk once"
    manager.runner.settle(job.job)
    assert handed.read_bytes() == FEW


def test_a_model_may_ask_for_less_than_the_servers_budget(manager: Manager) -> None:
    for name, asked, given in (("acme.less", 50, 50), ("acme.more", 5000, 3600)):
        made(manager, name, FEW, improve_cpu_s=asked)
        ctx = JobContext(queued(manager, name), manager.settings, manager.registry)
        assert improve.budget_of(ctx) == given


def test_a_version_is_improved_once(manager: Manager) -> None:
    made(manager, "acme.twice", FEW)
    job = queued(manager, "acme.twice")
    twin = JobRecord(
        job=f"{job.job}x", kind="improve", state="queued", created=now(), tenant="acme", spec=job.spec
    )
    assert not manager.registry.rooms.queue_improvement(twin, ModelId("acme", "twice"), 1)
    assert not manager.registry.has_job(twin.job)
