"""The registry: durable records, atomic changes, shared by processes."""

from __future__ import annotations

import hashlib
import random
import time
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest

from hmi.core import JobKind, JobState, KeyRecord, ModelId, now
from hmi.errors import Conflict, InvalidInput, JobCancelled, NotFound
from hmi.manager import Manager
from hmi.manager.tenants import new_key
from hmi.stores.records import job_table, table
from hmi.stores.records.job_table import drop_jobs
from hmi.stores.records.registry import Registry
from hmi.stores.records.registry_database import RegistryDatabase, RegistryTxn
from hmi.stores.records.table import RecordTable
from tests.hmi.labs.manager_lab import add_model, add_root
from tests.hmi.labs.registry_lab import add_tenant, job
from tests.hmi.labs.runner_bodies import version_by

ACME = ModelId("acme", "mood")


def sha(plain: str) -> str:
    return hashlib.sha256(plain.encode()).hexdigest()


def test_a_key_is_found_by_its_hash_and_never_stored(registry: Registry, tmp_path: Path) -> None:
    plain = add_tenant(registry, "beta")
    found = registry.find_key(sha(plain))
    assert found is not None
    assert (found.tenant, found.scopes) == ("beta", ("infer", "manage"))
    assert registry.find_key(sha(plain + "x")) is None
    assert registry.find_key("../" + sha(plain)) is None
    assert plain.encode() not in (tmp_path / "registry" / "data.mdb").read_bytes()
    registry.revoke_key(found.key_id)
    assert registry.find_key(sha(plain)) is None
    assert registry.keys("beta") == []
    with pytest.raises(NotFound):
        registry.revoke_key(found.key_id)


def test_keys_of_the_administrator_and_of_tenants_are_apart(registry: Registry) -> None:
    admin, _ = new_key(None, ("admin",))
    registry.put_key(admin)
    assert [k.key_id for k in registry.keys(None)] == [admin.key_id]
    assert admin.key_id not in {k.key_id for k in registry.keys("acme")}
    registry.delete_tenant("acme")
    assert registry.any_keys()
    stray = KeyRecord(key_id="k9", sha256="0" * 64, tenant="nobody", scopes=("infer",), created=now())
    with pytest.raises(NotFound):
        registry.put_key(stray)


def test_a_tenant_exists_once(registry: Registry) -> None:
    with pytest.raises(Conflict):
        add_tenant(registry, "acme")
    assert len(registry.keys("acme")) == 1


@pytest.mark.parametrize("name", ["", "../x", "a/b", "A", "-a", "a.b", "a" * 64, "a\0", "a\n"])
def test_impossible_names_never_reach_the_table(registry: Registry, name: str) -> None:
    with pytest.raises(InvalidInput):
        registry.tenant(name)
    with pytest.raises(InvalidInput):
        registry.model(ModelId(name, "m"))
    with pytest.raises(InvalidInput):
        registry.root(name)
    if name not in ("A", "a" * 64):
        with pytest.raises(NotFound):
            registry.job(name)


def test_publishing_is_once_for_a_job_and_numbers_go_up(registry: Registry) -> None:
    assert registry.publish_model(ACME, version_by("j1")).current == 1
    assert registry.publish_model(ACME, version_by("j1")).current == 1
    assert registry.publish_model(ACME, version_by("j2")).current == 2
    assert registry.set_current(ACME, 1).live.job == "j1"
    assert registry.publish_model(ACME, version_by("j2")).current == 1, (
        "a repetition must not undo a rollback"
    )
    assert [v.version for v in registry.publish_model(ACME, version_by("j3")).versions] == [1, 2, 3]
    with pytest.raises(Conflict):
        registry.publish_model(ACME, version_by("j4", version=3))
    with pytest.raises(NotFound, match="1, 2, 3"):
        registry.set_current(ACME, 9)


def test_old_versions_go_and_numbers_are_not_used_again(registry: Registry) -> None:
    for n in range(1, 12):
        registry.publish_model(ACME, version_by(f"j{n}"))
    record = registry.model(ACME)
    assert [v.version for v in record.versions] == list(range(4, 12))
    assert record.live.version == 11


def test_a_cancelled_job_or_a_deleted_tenants_cannot_publish(registry: Registry) -> None:
    registry.put_job(job("j1", state="running", spec={"model": str(ACME)}))
    registry.publish_model(ACME, version_by("j0"))
    registry.delete_model(ACME)
    assert registry.job("j1").cancel_requested
    with pytest.raises(JobCancelled):
        registry.publish_model(ACME, version_by("j1"))
    registry.put_job(job("j2", state="running"))
    models, keys, jobs, files = registry.delete_tenant("acme")
    assert (models, len(keys), jobs, files) == ([], 1, ["j1", "j2"], [])
    with pytest.raises(NotFound):
        registry.publish_model(ACME, version_by("j2"))
    add_tenant(registry, "acme")
    with pytest.raises(JobCancelled):
        registry.publish_model(ACME, version_by("j2"))
    assert registry.models() == []


def test_deleting_a_tenant_leaves_the_neighbours(registry: Registry) -> None:
    for name in ("acm", "acme-2", "acmf"):
        add_tenant(registry, name)
        registry.publish_model(ModelId(name, "mood"), version_by(f"j-{name}"))
        registry.put_job(job(f"j-{name}", tenant=name))
    registry.publish_model(ACME, version_by("j1"))
    models, _, _, _ = registry.delete_tenant("acme")
    assert [m.tenant for m in models] == ["acme"]
    assert {m.tenant for m in registry.models()} == {"acm", "acme-2", "acmf"}
    assert {j.tenant for j in registry.jobs()} == {"acm", "acme-2", "acmf"}
    assert {t.tenant for t in registry.tenants()} == {"acm", "acme-2", "acmf"}
    assert [len(registry.keys(t)) for t in ("acm", "acme-2", "acmf")] == [1, 1, 1]


def test_pages_of_models_meet_and_do_not_overlap(registry: Registry) -> None:
    add_tenant(registry, "acme-2")
    names = sorted([f"acme.m{i}" for i in range(7)] + [f"acme-2.m{i}" for i in range(3)])
    for name in names:
        registry.publish_model(ModelId.parse(name), version_by(f"j-{name}"))
    seen: list[str] = []
    while page := registry.models(after=seen[-1] if seen else None, limit=3):
        seen += [f"{m.tenant}.{m.name}" for m in page]
    assert seen == names
    assert len(registry.models(tenant="acme", after="acme.m4")) == 2
    assert len(registry.models(tenant="acme", after="aaa.m4")) == 7
    assert registry.models(tenant="acme", after="zeta.m4") == []
    assert registry.models(limit=0) == []


def test_one_live_job_for_a_target(registry: Registry) -> None:
    registry.add_job(job("j1", spec={"model": "acme.mood"}))
    with pytest.raises(Conflict, match="j1"):
        registry.add_job(job("j2", spec={"model": "acme.mood"}))
    registry.add_job(job("j3", spec={"model": "acme.other"}))
    registry.update_job("j1", lambda r: r.model_copy(update={"state": "failed"}))
    registry.add_job(job("j4", spec={"model": "acme.mood"}))
    assert [j.job for j in registry.live_jobs()] == ["j3", "j4"]
    assert [j.job for j in registry.jobs()] == ["j1", "j3", "j4"]
    assert [j.job for j in registry.jobs(state="failed")] == ["j1"]


def test_answers_are_remembered_for_their_time(registry: Registry) -> None:
    registry.store("key", "scope", {"n": 1}, ttl_s=0.05)
    assert registry.remember("key", "scope") == {"n": 1}
    assert registry.remember("key", "other") is None
    time.sleep(0.06)
    assert registry.remember("key", "scope") is None


def test_expired_answers_are_dropped(registry: Registry, tmp_path: Path) -> None:
    for i in range(5):
        registry.store(f"k{i}", "s", {"n": i}, ttl_s=-5)
    registry.store("k0", "s", {"n": "again"})
    assert registry.remember("k0", "s") == {"n": "again"}
    database = RegistryDatabase.open(tmp_path / "registry")
    assert len(database.read(lambda t: t.keys("once/"))) == 1
    assert len(database.read(lambda t: t.keys("onceuntil/"))) == 1
    database.release()


def pages(registry: Registry, tenant: str | None, state: Any, kind: Any, limit: int) -> list[str]:
    """All jobs of a list, read page by page."""
    found: list[str] = []
    after = None
    while True:
        page, after = registry.page_of_jobs(tenant, state, kind, after, limit)
        assert len(page) <= limit
        found += [record.job for record in page]
        if after is None:
            return found


def test_pages_and_counts_of_jobs_are_those_of_a_full_read(registry: Registry, tmp_path: Path) -> None:
    rng, states, kinds = random.Random(4), get_args(JobState), get_args(JobKind)
    add_tenant(registry, "acme-2")
    owners = ("acme", "acme-2", None)
    for i in range(80):
        name = f"j{rng.randrange(40):04d}"
        old = {record.job: record for record in registry.jobs()}.get(name)
        if old is not None and rng.random() < 0.2:
            registry._database.write(lambda t, name=name: drop_jobs(registry._table, t, [name]))  # type: ignore[misc]
        else:  # a job's state changes, its owner and kind do not
            given = (
                {"tenant": old.tenant, "kind": old.kind}
                if old
                else {"tenant": owners[i % 3], "kind": kinds[i % 4]}
            )
            registry.put_job(
                job(name, created=f"2026-01-01T00:00:{name[-2:]}Z", state=rng.choice(states), **given)
            )
    for again in range(2):
        everything = registry.jobs()[::-1]
        assert len(everything) > 20
        assert Counter(registry.count_jobs()) == Counter(record.state for record in everything)
        for tenant, state, kind in product((None, *owners[:2]), (None, *states), (None, *kinds)):
            want = [
                r.job
                for r in everything
                if tenant in (None, r.tenant) and state in (None, r.state) and kind in (None, r.kind)
            ]
            assert pages(registry, tenant, state, kind, 3) == want
        if not again:  # a registry of an earlier release has no indexes; opening creates them
            registry._database.write(unindexed)
            assert registry.count_jobs() == {}
            Registry.open(tmp_path / "registry").close()
    registry.delete_tenant("acme")
    assert pages(registry, "acme", None, None, 100) == []
    assert {record.tenant for record in registry.jobs()} == {"acme-2", None}
    assert sum(registry.count_jobs().values()) == len(registry.jobs())


def unindexed(txn: RegistryTxn) -> None:
    for prefix in ("jobof/", "jobcount/", "jobsindexed"):
        for key in txn.keys(prefix):
            txn.delete(prefix + key)


def test_a_page_of_jobs_reads_a_bounded_number_of_records(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_table, "LOOKED_AT", 20)
    registry._database.write(
        lambda t: [
            job_table.put_job(registry._table, t, job(f"j{i:04d}", state="failed")) for i in range(100)
        ]
    )
    read: list[str] = []
    get = RecordTable.get
    monkeypatch.setattr(RecordTable, "get", lambda *a: read.append(a[2]) or get(*a))
    for given, most in (
        ((None, None, None, None, 5), 6),
        ((None, None, None, "j0050", 5), 6),
        (("acme", None, None, None, 5), 6),
        ((None, "succeeded", None, None, 5), 20),
        (("acme", None, "build_plot", None, 5), 20),
        ((None, "running", None, None, 5), 0),
    ):
        read.clear()
        registry.page_of_jobs(*given)  # type: ignore[arg-type]
        assert len(read) <= most
    read.clear()
    assert Counter(registry.count_jobs()) == Counter({"failed": 100})
    assert read == []
    assert pages(registry, None, "succeeded", None, 5) == []
    assert len(pages(registry, None, None, None, 7)) == 100


def test_the_cache_of_records_is_bounded_keeps_those_in_use_and_never_answers_with_an_old_one(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "CACHED", 8)
    parsed: list[str] = []
    parse = table.parsed
    monkeypatch.setattr(table, "parsed", lambda *a: parsed.append(a[0]) or parse(*a))
    names = [f"t{i:02}" for i in range(50)]
    for name in names:
        add_tenant(registry, name)
    parsed.clear()
    for name in names:
        assert registry.tenant(name).tenant == name
        assert registry.tenant("t00").tenant == "t00"  # used all the time
        assert len(registry._table._new) + len(registry._table._old) <= 16
    assert sorted(parsed) == [table.TENANT + name for name in names]
    registry.update_tenant("t00", lambda old: old.model_copy(update={"weight": 3.0}))
    assert registry.tenant("t00").weight == 3.0


def test_records_of_a_kind_share_the_names_of_their_fields(registry: Registry) -> None:
    for name in ("a", "b"):
        add_tenant(registry, name)
    a, b = registry.tenant("a"), registry.tenant("b")
    assert a.__pydantic_fields_set__ is b.__pydantic_fields_set__
    assert a.model_fields_set == set(type(a).model_fields)


def test_the_artefacts_in_use_are_those_of_the_records(manager: Manager) -> None:
    add_root(manager)
    manager.create_tenant("acme")
    plot = manager.plots.refs()["tiny"]
    names = {add_model(manager, f"acme.m{i % 3}", plot, f"j{i}", float(i)) for i in range(6)}
    used = {v.artefact for m in manager.registry.models() for v in m.versions}
    assert manager.registry.artefacts() == used == names
    manager.delete_model("acme.m0")
    assert len(manager.registry.artefacts()) == 4
