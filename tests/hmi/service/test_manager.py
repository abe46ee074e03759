"""The manager's rules: what is allowed when, what is refused and why, and that nothing in use is removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import plot_store
from hmi.errors import Conflict, InvalidInput, NotFound, UnsupportedModel
from hmi.manager import Manager, maintenance
from hmi.stores.plot.plots import current_version
from plot_store import Store, VersionInfo
from tests.hmi.labs.manager_lab import PAIRS, ROWS, add_model, add_root, end, publish_plot


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
    for wrong in (
        {"alpha": 101},
        {"alpha": nan},
        {"split": -1},
        {"options": {"steps": -1}},
        {"options": {"x": 1}},
    ):
        with pytest.raises(InvalidInput):
            manager.import_root("tiny", str(tiny_source), **wrong)
    assert manager.jobs() == []
    job = manager.import_root(
        "tiny", str(tiny_source), texts={"text-0.txt": b"some text\nmore"}, options={"steps": 7}
    )
    assert job.spec["source"] == str(tiny_source.resolve())
    assert job.spec["options"]["steps"] == 7
    assert (
        manager.settings.data / "jobs" / job.job / "input" / "text-0.txt"
    ).read_bytes() == b"some text\nmore"
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
        manager.create_domain("tiny", b"some text\nmore")
    with pytest.raises(NotFound, match="create other first"):
        manager.create_domain("other/news", b"some text\nmore")
    with pytest.raises(NotFound):
        manager.update_domain("tiny/news", b"some text\nmore")
    with pytest.raises(InvalidInput, match="alpha"):
        manager.create_domain("tiny/news", b"some text\nmore", alpha=-1)
    job = manager.create_domain("tiny/news", b"some text\nmore", alpha=40, options={"min_count": 2})
    assert job.spec["mode"] == "create"
    assert job.spec["options"]["min_count"] == 2
    with pytest.raises(Conflict, match=job.job):
        manager.create_domain("tiny/news", b"some text\nmore")
    end(manager, job.job)
    publish_plot(manager, "tiny/news")
    with pytest.raises(Conflict, match="exists already"):
        manager.create_domain("tiny/news", b"some text\nmore")
    assert manager.update_domain("tiny/news", b"some text\nmore").spec["alpha"] == 30.0, (
        "as the current version has it"
    )


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


def test_the_list_has_what_each_domain_shows_of_itself(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_root(manager)
    for name in ("tiny/news", "tiny/news/sport", "tiny/news-2", "tiny/news/arts"):
        publish_plot(manager, name)
    publish_plot(manager, "tiny/news", "b2")
    manager.set_domain("tiny/news/sport", record_misses=True)
    listed = manager.domains()
    assert listed == [manager.domain(domain.domain) for domain in listed]
    assert [domain.domain for domain in listed if domain.record_misses] == ["tiny/news/sport"]
    children = {domain.domain: domain.children for domain in listed}
    assert children["tiny"] == ("tiny/news", "tiny/news-2")
    assert children["tiny/news"] == ("tiny/news/arts", "tiny/news/sport")
    real = Store.history

    def history(store: Store, ref: str) -> list[VersionInfo]:
        if ref == "tiny/news/sport" and ref in store.heads():
            Store.delete(store, ref)
        return real(store, ref)

    monkeypatch.setattr(Store, "history", history)
    assert [domain.domain for domain in manager.domains()] == sorted(children.keys() - {"tiny/news/sport"})


def test_a_versions_id_is_no_domain(manager: Manager) -> None:
    """Its form is also that of a name."""
    add_root(manager)
    current = manager.plots.heads()["tiny"]
    assert current_version(manager.plots, "tiny") == manager.plots.version(current)
    assert current_version(manager.plots, current) is None
    with pytest.raises(NotFound, match=current):
        manager.domain(current)


def test_only_domains_that_have_moved_are_looked_at_for_compaction(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_root(manager)
    for name in ("tiny/a", "tiny/b"):
        publish_plot(manager, name)
    looked: list[str] = []
    real = maintenance.current_version

    def look(plots: Store, ref: str) -> VersionInfo | None:
        looked.append(ref)
        return real(plots, ref)

    monkeypatch.setattr(maintenance, "current_version", look)
    manager.maintenance.housekeeping()
    assert looked == ["tiny", "tiny/a", "tiny/b"]
    manager.maintenance.housekeeping()
    publish_plot(manager, "tiny/b", "b2")
    manager.delete_domain("tiny/a")
    manager.maintenance.housekeeping()
    assert looked[3:] == ["tiny/b", "tiny/a"]
    manager.maintenance.housekeeping()
    assert len(looked) == 5


def test_the_disk_report_has_the_length_of_each_chain(manager: Manager) -> None:
    add_root(manager)
    for name in ("tiny/a", "tiny/a/x", "tiny/a/y", "tiny/b"):
        publish_plot(manager, name)
    publish_plot(manager, "tiny/b", "b2")
    for row in manager.maintenance.on_disk():
        assert row.chain == len(manager.plots.chain(row.domain)), row.domain


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
    job = manager.create_model("acme.other", domain="tiny/news", task="pair", data=PAIRS)
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
