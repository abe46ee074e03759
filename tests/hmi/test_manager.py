"""The manager's rules: what may be done when, what is refused and why, and that nothing in use is ever removed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import plot_store
from hmi.config import Settings
from hmi.core import ModelId, RootRecord, now
from hmi.errors import Conflict, Damaged, InvalidInput, NotFound, UnsupportedModel
from hmi.manager import Manager
from hmi.stores.plots import as_hmi, plot_errors
from plot_store import Schema, VersionInfo
from tests.hmi.runner_bodies import version_by

ROWS = b'{"text": "good", "label": "a"}\n'


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    opened = Manager(Settings(data=tmp_path / "data", job_workers=0))
    yield opened
    opened.close()


def publish_plot(manager: Manager, ref: str, build: str = "b1", **meta: Any) -> VersionInfo:
    parent = ref.rpartition("/")[0] or None
    if ref in manager.plots.refs():
        parent = None
    name = f"{ref}.{build}".replace("/", ":")
    with manager.plots.writer(ref, schema=Schema(dim=4, vocab=50), parent=parent, build=name) as w:
        w.add(1, np.arange(1, 5, dtype=np.uint32).reshape(4, 1), np.full((4, 3, 4), len(build), np.float32))
        return w.publish(meta={"root_version": "r1", "alpha": 30.0, "report": {}, "job": build, **meta})


def add_root(manager: Manager, name: str = "tiny") -> None:
    publish_plot(manager, name)
    (manager.settings.data / "roots" / name / "r1").mkdir(parents=True)
    record = RootRecord(
        name=name, version="r1", created=now(), source={"kind": "folder"}, dim=4, layers=4, split=2, fidelity={},
        bytes=1, job="j0",
    )  # fmt: skip
    manager.registry.put_root(record)


def add_model(manager: Manager, name: str, plot: VersionInfo, job: str = "j1", number: float = 1.0) -> str:
    artefact, size = manager.adapters.put({"head.out.bias": torch.tensor([number])})
    version = version_by(job, artefact=artefact, domain=plot.ref, plot_version=plot.id, bytes=size)
    manager.registry.publish_model(ModelId.parse(name), version)
    return artefact


def end(manager: Manager, job: str) -> None:
    manager.registry.update_job(job, lambda r: r.model_copy(update={"state": "failed"}))


def test_keys_open_only_their_tenant_and_are_kept_as_hashes(manager: Manager) -> None:
    tenant, plain = manager.create_tenant("acme")
    assert tenant.tenant == "acme"
    assert plain.startswith("hmi_")
    assert len(plain) == 4 + 43
    found = manager.registry.find_key(hashlib.sha256(plain.encode()).hexdigest())
    assert found is not None
    assert (found.tenant, found.scopes) == ("acme", ("infer", "manage"))
    admin, _ = manager.create_key(None, ("admin",))
    assert admin.tenant is None
    with pytest.raises(InvalidInput):
        manager.create_key("acme", ("admin",))
    with pytest.raises(InvalidInput):
        manager.create_key("acme", ())
    with pytest.raises(NotFound):
        manager.create_key("nobody")
    with pytest.raises(Conflict):
        manager.create_tenant("acme")
    manager.revoke_key(found.key_id)
    assert manager.registry.keys("acme") == []


@pytest.mark.parametrize("name", ["../evil", "a/b", "UPPER", "", "a" * 64, ".tmp", "a\0b"])
def test_names_are_checked_before_they_reach_a_path(
    manager: Manager, tmp_path: Path, tiny_source: Path, name: str
) -> None:
    before = sorted(p for p in tmp_path.rglob("*"))
    for act in (
        lambda: manager.create_tenant(name),
        lambda: manager.delete_tenant(name),
        lambda: manager.import_root(name, str(tiny_source)),
        lambda: manager.delete_root(name),
        lambda: manager.create_domain(f"tiny/{name}//", b"x"),
        lambda: manager.delete_domain(f"tiny/{name}/"),
        lambda: manager.create_model(f"{name}.m", domain="tiny", task="pair", data=ROWS),
        lambda: manager.create_model(f"acme.{name}", domain="tiny", task="pair", data=ROWS),
        lambda: manager.delete_model(f"acme.{name}"),
        lambda: manager.job(f"../{name}"),
        lambda: manager.job_progress(f"../{name}"),
    ):
        with pytest.raises((InvalidInput, NotFound)):
            act()
    assert sorted(p for p in tmp_path.rglob("*")) == before


def test_importing_a_root_is_checked_at_once(manager: Manager, tiny_source: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel):
        manager.import_root("tiny", str(tmp_path / "nothing"))
    nan = float("nan")
    for wrong in ({"alpha": 101}, {"alpha": nan}, {"split": 0}, {"options": {"steps": 0}}, {"options": {"x": 1}}):
        with pytest.raises(InvalidInput):
            manager.import_root("tiny", str(tiny_source), **wrong)
    assert manager.jobs() == []
    job = manager.import_root("tiny", str(tiny_source), texts={"text-0.txt": b"some text"}, options={"steps": 7})
    assert job.spec["source"] == str(tiny_source.resolve())
    assert job.spec["options"]["steps"] == 7
    assert (manager.settings.data / "jobs" / job.job / "input" / "text-0.txt").read_bytes() == b"some text"
    with pytest.raises(Conflict, match=job.job):
        manager.import_root("tiny", str(tiny_source))
    end(manager, job.job)
    add_root(manager)
    with pytest.raises(Conflict, match="exists already"):
        manager.import_root("tiny", str(tiny_source))


def test_the_plot_of_an_import_that_never_ended_is_cleared(manager: Manager, tiny_source: Path) -> None:
    publish_plot(manager, "tiny")
    running = manager.import_root("other", str(tiny_source))
    publish_plot(manager, "other")
    manager.runner._clean()
    assert set(manager.plots.refs()) == {"other"}, "an import at work keeps its own"
    end(manager, running.job)
    assert manager.import_root("other", str(tiny_source)).state == "queued"
    assert manager.plots.refs() == {}


def test_domains_need_their_parent_and_a_free_name(manager: Manager) -> None:
    add_root(manager)
    with pytest.raises(InvalidInput):
        manager.create_domain("tiny", b"text")
    with pytest.raises(NotFound, match="create other first"):
        manager.create_domain("other/news", b"text")
    with pytest.raises(NotFound):
        manager.update_domain("tiny/news", b"text")
    with pytest.raises(InvalidInput, match="alpha"):
        manager.create_domain("tiny/news", b"text", alpha=-1)
    job = manager.create_domain("tiny/news", b"text", alpha=40, options={"min_count": 2})
    assert job.spec["mode"] == "create"
    assert job.spec["options"]["min_count"] == 2
    with pytest.raises(Conflict, match=job.job):
        manager.create_domain("tiny/news", b"text")
    end(manager, job.job)
    publish_plot(manager, "tiny/news")
    with pytest.raises(Conflict, match="exists already"):
        manager.create_domain("tiny/news", b"text")
    assert manager.update_domain("tiny/news", b"text").spec["alpha"] == 30.0, "as the current version has it"


def test_domains_are_shown_and_rolled_back(manager: Manager) -> None:
    add_root(manager)
    first = publish_plot(manager, "tiny/news")
    second = publish_plot(manager, "tiny/news", "b22", alpha=60.0)
    publish_plot(manager, "tiny/news/sport")
    manager.create_tenant("acme")
    add_model(manager, "acme.mood", first)
    root, news, sport = manager.domains()
    assert [root.domain, news.domain, sport.domain] == ["tiny", "tiny/news", "tiny/news/sport"]
    assert (root.parent, news.parent, sport.parent) == (None, "tiny", "tiny/news")
    assert (root.children, news.children) == (("tiny/news",), ("tiny/news/sport",))
    assert (news.current, news.alpha, news.models) == (second.id, 60.0, 1)
    assert [v.version for v in news.versions] == [second.id, first.id]
    assert news.entries == {"3": 0, "2": 0, "1": 4}
    assert manager.rollback_domain("tiny.news", first.id).current == first.id
    with pytest.raises(InvalidInput):
        manager.rollback_domain("tiny/news", root.current)
    with pytest.raises((InvalidInput, NotFound)):
        manager.rollback_domain("tiny/news", "v9")
    with pytest.raises(NotFound):
        manager.domain("tiny/other")


def test_what_is_in_use_is_not_deleted(manager: Manager, tmp_path: Path) -> None:
    add_root(manager)
    news = publish_plot(manager, "tiny/news")
    publish_plot(manager, "tiny/news/sport")
    manager.create_tenant("acme")
    add_model(manager, "acme.mood", news)
    with pytest.raises(Conflict, match="tiny/news/sport"):
        manager.delete_domain("tiny/news")
    manager.delete_domain("tiny/news/sport")
    with pytest.raises(Conflict, match=r"acme\.mood"):
        manager.delete_domain("tiny/news")
    with pytest.raises(Conflict, match="tiny/news"):
        manager.delete_root("tiny")
    with pytest.raises(InvalidInput):
        manager.delete_domain("tiny")
    manager.delete_model("acme.mood")
    job = manager.create_model("acme.mood", domain="tiny/news", task="classification", data=ROWS)
    with pytest.raises(Conflict, match=job.job):
        manager.delete_domain("tiny/news")
    manager.cancel_job(job.job)
    manager.delete_domain("tiny/news")
    with pytest.raises(NotFound):
        manager.delete_domain("tiny/news")
    manager.delete_root("tiny")
    assert manager.domains() == []
    assert not (tmp_path / "data" / "roots" / "tiny").exists()


def test_a_pinned_plot_version_outlives_many_newer_ones(manager: Manager) -> None:
    add_root(manager)
    manager.create_tenant("acme")
    first = publish_plot(manager, "tiny/news", "b0")
    dropped = publish_plot(manager, "tiny/news", "b1")
    training = publish_plot(manager, "tiny/news", "b2")
    add_model(manager, "acme.mood", first)
    for n in range(3, 13):
        newest = publish_plot(manager, "tiny/news", f"b{n}")
    job = manager.create_model("acme.other", domain="tiny/news", task="pair", data=ROWS)
    (manager.settings.data / "jobs" / job.job / "plan.json").write_text(f'{{"plot": "{training.id}"}}')
    manager.collect_garbage()
    for version in (first, training, newest):
        with manager.plots.reader(version.id) as reader:
            assert reader.version.id == version.id
    with pytest.raises(plot_store.Collected):
        manager.plots.version(dropped.id)
    assert manager.verify() == ()
    manager.cancel_job(job.job)
    manager.delete_model("acme.mood")
    manager.collect_garbage()
    with pytest.raises(plot_store.Collected):
        manager.plots.version(first.id)


def test_models_are_checked_at_once(manager: Manager) -> None:
    add_root(manager)
    manager.create_tenant("acme")
    good: dict[str, Any] = {"domain": "tiny", "task": "classification", "data": ROWS}
    with pytest.raises(NotFound, match="tenant"):
        manager.create_model("nobody.mood", **good)
    with pytest.raises(NotFound, match="domain"):
        manager.create_model("acme.mood", **{**good, "domain": "tiny/none"})
    with pytest.raises(InvalidInput, match="task"):
        manager.create_model("acme.mood", **{**good, "task": "poetry"})
    with pytest.raises(InvalidInput, match=r"options\.module\.rank"):
        manager.create_model("acme.mood", **good, options={"module": {"rank": 0}})
    with pytest.raises(NotFound):
        manager.update_model("acme.mood", data=ROWS)
    job = manager.create_model("acme.mood", **good, dev=ROWS)
    assert (job.tenant, job.spec["mode"], job.spec["inputs"]) == ("acme", "create", ["data", "dev"])
    with pytest.raises(Conflict, match=job.job):
        manager.create_model("acme.mood", **good)
    manager.cancel_job(job.job)
    add_model(manager, "acme.mood", manager.plots.version("tiny"))
    with pytest.raises(Conflict, match="exists already"):
        manager.create_model("acme.mood", **good)
    assert manager.update_model("acme.mood", data=ROWS).spec["task"] == "classification"


def test_rolling_a_model_back_and_deleting_it(manager: Manager) -> None:
    add_root(manager)
    manager.create_tenant("acme")
    plot = manager.plots.version("tiny")
    one = add_model(manager, "acme.mood", plot, "j1", 1.0)
    two = add_model(manager, "acme.mood", plot, "j2", 2.0)
    shared = add_model(manager, "acme.twin", plot, "j3", 2.0)
    assert shared == two
    assert manager.rollback_model("acme.mood", 1).live.artefact == one
    with pytest.raises(NotFound):
        manager.rollback_model("acme.mood", 3)
    manager.delete_model("acme.mood")
    assert manager.adapters.names() == {two}, "what another model uses stays"
    assert [m.name for m in manager.models()] == ["twin"]
    with pytest.raises(NotFound):
        manager.model("acme.mood")


def test_artefacts_wait_while_a_job_may_be_about_to_publish_the_same(manager: Manager) -> None:
    add_root(manager)
    manager.create_tenant("acme")
    add_model(manager, "acme.mood", manager.plots.version("tiny"), "j1")
    manager.create_model("acme.other", domain="tiny", task="pair", data=ROWS)
    manager.delete_model("acme.mood")
    assert len(manager.adapters.names()) == 1


def test_deleting_a_tenant_removes_all_that_is_its_own(manager: Manager, tmp_path: Path) -> None:
    add_root(manager)
    plot = manager.plots.version("tiny")
    for name in ("acme", "beta"):
        manager.create_tenant(name)
        add_model(manager, f"{name}.mood", plot, f"j-{name}", 1.0)
        add_model(manager, f"{name}.own", plot, f"k-{name}", float(len(name) + ord(name[0])))
    secret = manager.create_model("acme.new", domain="tiny", task="pair", data=b"acme's secret rows")
    assert manager.delete_tenant("acme") == {"models": 2, "keys": 1, "jobs": 1, "artefacts": 1}
    assert not (tmp_path / "data" / "jobs" / secret.job).exists()
    assert manager.jobs() == []
    assert [f"{m.tenant}.{m.name}" for m in manager.models()] == ["beta.mood", "beta.own"]
    assert manager.verify() == ()
    with pytest.raises(NotFound):
        manager.delete_tenant("acme")


def test_what_is_missing_is_named(manager: Manager, tmp_path: Path) -> None:
    add_root(manager)
    manager.create_tenant("acme")
    artefact = add_model(manager, "acme.mood", manager.plots.version("tiny"))
    assert manager.verify() == ()
    (tmp_path / "data" / "adapters" / f"{artefact}.safetensors").unlink()
    manager.registry.publish_model(ModelId("acme", "lost"), version_by("j9", artefact=artefact))
    (tmp_path / "data" / "roots" / "tiny" / "r1").rmdir()
    problems = manager.verify()
    assert [p.partition(":")[0] for p in problems] == [
        "the files of root tiny are missing",
        "version 1 of model acme.lost has lost its artefact",
        "version 1 of model acme.lost has lost its PLOT version",
        "version 1 of model acme.mood has lost its artefact",
    ]


def test_counts(manager: Manager) -> None:
    add_root(manager)
    manager.create_tenant("acme")
    add_model(manager, "acme.mood", manager.plots.version("tiny"))
    stats = manager.stats()
    assert (stats["roots"], stats["domains"], stats["tenants"], stats["models"]) == (1, 1, 1, 1)
    assert stats["plot_entries"]["1"] == 4
    assert all(stats["bytes"][part] > 0 for part in ("registry", "plots", "adapters"))


def test_the_plot_stores_errors_are_ours_at_the_boundary(tmp_path: Path) -> None:
    for theirs, kind in (
        (plot_store.InUse("x"), "conflict"),
        (plot_store.Conflict("x"), "conflict"),
        (plot_store.StoreFull("x"), "storage_full"),
        (plot_store.FormatTooNew("x"), "damaged"),
        (plot_store.Collected("x"), "not_found"),
        (plot_store.Invalid("x"), "invalid_input"),
    ):
        assert as_hmi(theirs).kind == kind
    with pytest.raises(NotFound, match="nothing"):
        with plot_errors():
            plot_store.Store.open(tmp_path / "nothing")


def test_a_newer_data_folder_is_refused(tmp_path: Path) -> None:
    Manager(Settings(data=tmp_path)).close()
    (tmp_path / "FORMAT").write_text("99\n")
    with pytest.raises(Damaged, match="upgrade"):
        Manager(Settings(data=tmp_path))


def test_two_managers_share_a_folder_in_one_process(tmp_path: Path) -> None:
    one, two = Manager(Settings(data=tmp_path)), Manager(Settings(data=tmp_path))
    one.create_tenant("acme")
    one.close()
    assert [t.tenant for t in two.registry.tenants()] == ["acme"]
    two.close()
    two.close()


def test_settings_name_what_is_impossible(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HMI_DATA", str(tmp_path))
    monkeypatch.setenv("HMI_PORT", "9000")
    settings = Settings.from_env(host="::1", port=None)
    assert (settings.data, settings.port, settings.host, settings.streams) == (tmp_path, 9000, "::1", 1)
    assert Settings.from_env(port=0).port == 0
    assert Settings(data=Path("x")).data.is_absolute()
    monkeypatch.setenv("HMI_PORT", "http")
    with pytest.raises(InvalidInput, match="HMI_PORT"):
        Settings.from_env()
    for wrong in ({"port": 70000}, {"streams": 0}, {"max_inputs": -1}, {"host": ""}, {"streams": True}):
        with pytest.raises(InvalidInput, match=next(iter(wrong))):
            Settings(**wrong)
    with pytest.raises(InvalidInput, match="colour"):
        Settings.from_env(port=1, colour="red")
