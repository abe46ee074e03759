"""PLOTs in the bucket that nodes share: a primary puts them there, replicas and its successor take them."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmi.config import Settings
from hmi.core import DeletedParts, ModelId
from hmi.engine.admit.bundles import Bundles
from hmi.errors import Conflict, Unavailable
from hmi.jobs.plot import compact_plot, erase_text
from hmi.jobs.root import import_root
from hmi.jobs.runtime.context import JobContext
from hmi.manager import Manager
from hmi.stores.plot import sharing
from hmi.stores.plot.sharing import plots_in_use, share
from plot_store import Remote
from plot_store.remote.erasures import listed
from plot_store.remote.objects import open_objects
from tests.bucket import credentials
from tests.hmi.labs.build_lab import attempt, create, text
from tests.hmi.labs.manager_lab import add_model, add_root, publish_plot
from tests.waiting import wait_until

Open = Callable[..., Manager]
NEWS = "tiny/news"


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "folder":
        return str(tmp_path / "bucket")
    for variable, value in credentials(request.getfixturevalue("bucket")).items():
        monkeypatch.setenv(variable, value)
    return f"s3://plots/{uuid.uuid4().hex}"


@pytest.fixture
def node(tmp_path: Path, place: str) -> Iterator[Open]:
    """Opens a node's manager, which runs no jobs."""
    opened: list[Manager] = []

    def one(name: str, role: str = "primary", bucket: str = place) -> Manager:
        settings = Settings(data=tmp_path / name, bucket=bucket, role=role, job_workers=0, teachers="")
        opened.append(Manager(settings))
        return opened[-1]

    yield one
    for manager in opened:
        manager.close()


def at(place: str) -> dict[str, str]:
    return Remote(f"{place}/plots").refs()


def filled(manager: Manager, place: str) -> list[str]:
    """Share a root and three versions of a domain, each built anew. A model is on the first."""
    add_root(manager)
    manager.create_tenant("acme")
    manager._parts.share("tiny")
    versions = []
    for build in ("b1", "b22", "b333"):
        versions.append(publish_plot(manager, NEWS, build).id)
        manager._parts.share(NEWS)
    add_model(manager, "acme.mood", manager.plots.version(versions[0]))
    return versions


def rows(manager: Manager, version: str) -> np.ndarray:
    tokens, offsets = np.arange(8, dtype=np.int32), np.array([0, 3, 8], np.int64)
    with (manager.fetching or manager.plots).reader(version) as reader:
        return reader.lookup(tokens, offsets)[0].view(np.uint32)


def test_a_replica_reads_what_a_model_is_on(node: Open, place: str) -> None:
    first = node("first")
    versions = filled(first, place)
    replica = node("replica", "replica")
    live = replica.registry.model(ModelId.parse("acme.mood")).live
    stores = replica.registry, replica.plots, replica.adapters, replica.lowers
    bundles = Bundles(replica.settings.data, *stores, fetching=replica.fetching)
    reader = bundles.reader(live).load()
    assert reader.version.id == versions[0]
    for version in versions:
        assert np.array_equal(rows(first, version), rows(replica, version))
    bundles.close()
    assert replica.plots.refs() == {}
    replica.follow_erasures()  # no model is on the other two
    assert {meta.id for meta in replica.plots.metas()} == {v.id for v in first.plots.chain(versions[0])}


def test_the_next_primary_has_everything(node: Open, place: str, caplog: pytest.LogCaptureFixture) -> None:
    first = node("first")
    versions = filled(first, place)
    publish_plot(first, "tiny/lost")  # it was not shared
    first._consistency.housekeeping()
    assert at(place) == first.plots.heads()
    second = node("second")
    with caplog.at_level(logging.INFO):
        second.adopt_plots()
    assert "taking tiny/news from the bucket (3 of 3)" in caplog.text
    assert second.plots.heads() == first.plots.heads()
    assert np.array_equal(rows(first, versions[0]), rows(second, versions[0]))
    assert second.plots.pins() == []
    second._consistency.collect()
    assert np.array_equal(rows(first, versions[0]), rows(second, versions[0]))
    caplog.clear()
    with caplog.at_level(logging.INFO):
        second.adopt_plots()
    assert "bucket" not in caplog.text

    # The first one comes back. Meanwhile the second one has managed, and the first has published, too.
    newest = publish_plot(second, NEWS, "b4444").id
    second._parts.share(NEWS)
    second.delete_domain("tiny/lost")
    assert at(place).keys() == {"tiny", NEWS}
    second.registry.lead("http://second")
    lone = publish_plot(first, NEWS, "b55555").id
    with pytest.raises(Unavailable, match="no longer the primary"):
        first._parts.share(NEWS)
    assert at(place)[NEWS] == newest
    first.adopt_plots()
    assert first.plots.heads() == second.plots.heads() == at(place)
    assert lone in {version.id for version in first.plots.history(NEWS)}


def test_an_old_primary_leaves_the_bucket_alone(node: Open, place: str) -> None:
    """Nothing else has happened since the other one took over, so no later version refuses the change."""
    first, second = node("first"), node("second")
    first.registry.lead("http://first")
    add_root(first)
    first._parts.share("tiny")
    versions = [publish_plot(first, NEWS, build).id for build in ("b1", "b22")]
    first._parts.share(NEWS)
    second.registry.lead("http://second")
    there = at(place)
    assert there[NEWS] == versions[1]
    for change in (
        lambda: first.rollback_domain(NEWS, versions[0]),
        lambda: first.delete_domain(NEWS),
        lambda: first.delete_root("tiny"),
    ):
        with pytest.raises(Unavailable, match="the primary"):
            change()
        assert at(place) == there
    assert NEWS in first.plots.heads()


def test_an_old_primary_notices_although_another_look_came_first(
    node: Open, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = node("first"), node("second")
    assert first.following is not None
    first.following.begin("http://first")
    first.following.follow()
    assert first.following.elsewhere() is None
    second.registry.lead("http://second")
    first.registry.catch_up()
    wait_until(lambda: "http://second is the primary now" in caplog.text)
    primary = first.following.elsewhere()
    assert primary is not None
    assert primary.url == "http://second"


def test_who_cannot_take_over_leaves_the_primary_alone(node: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = node("first"), node("second")
    first.registry.lead("http://first")

    def fail() -> None:
        raise Unavailable("the bucket does not answer")

    assert second.following is not None
    with monkeypatch.context() as away:
        away.setattr(second, "adopt_plots", fail)
        with pytest.raises(Unavailable):
            second.following.begin("http://second")
    assert first.registry.leads()
    assert second.following.begin("http://second")
    assert not first.registry.leads()


def test_a_replica_manages_nothing_while_no_other_is_the_primary(node: Open, tmp_path: Path) -> None:
    replica = node("replica", "replica")
    assert replica.following is not None
    with pytest.raises(Unavailable, match="no server is the primary"):
        replica.following.elsewhere()
    first = node("first")
    first.registry.lead("http://first")
    first.close()
    again = node("first", "replica")
    assert again.following is not None
    with pytest.raises(Unavailable, match="no server is the primary"):
        again.following.elsewhere()
    replica.registry.catch_up()
    primary = replica.following.elsewhere()
    assert primary is not None
    assert primary.url == "http://first"


def test_a_data_folder_that_had_no_bucket(node: Open, place: str) -> None:
    alone = node("first", bucket="")
    add_root(alone)
    alone.create_tenant("acme")
    old = publish_plot(alone, NEWS, "b1")
    add_model(alone, "acme.mood", old)
    publish_plot(alone, NEWS, "b22")
    assert alone.follow_erasures() == set()
    alone.adopt_plots()
    alone.close()
    first = node("first")
    first.adopt_plots()
    first._consistency.housekeeping()
    assert at(place) == first.plots.heads()
    replica = node("replica", "replica")
    assert np.array_equal(rows(first, old.id), rows(replica, old.id))


def test_what_the_manager_does_to_domains(node: Open, place: str, tmp_path: Path) -> None:
    first = node("first")
    versions = filled(first, place)
    assert at(place) == first.plots.heads()
    first.rollback_domain(NEWS, versions[1])
    assert at(place)[NEWS] == versions[1]
    first.export_domain(NEWS, tmp_path / "file", lambda *_: None)
    first.import_domain(tmp_path / "file", "tiny/copy", lambda *_: None)
    assert at(place) == first.plots.heads()
    first.delete_domain("tiny/copy")
    assert at(place).keys() == {"tiny", NEWS}
    apart = str(tmp_path / "apart")
    first.push_domain(NEWS, apart, lambda *_: None)
    first.rollback_domain(NEWS, versions[0])
    first.rollback_domain(NEWS, versions[2])
    first.pull_domain(NEWS, apart, lambda *_: None)
    assert at(place) == first.plots.heads()


def test_a_push_that_did_not_live_to_record_it(node: Open, place: str) -> None:
    """A second node is at work with the first one's data: it stands for its own earlier process."""
    first = node("first")
    versions = filled(first, place)
    second = node("second")
    second.adopt_plots()
    last = publish_plot(second, NEWS, "b4444")
    second._parts.share(NEWS)
    first.plots.pull(last.id, f"{place}/plots")
    first.rollback_domain(NEWS, versions[1])  # it has the bucket's version, and never agreed on it
    assert at(place)[NEWS] == versions[1]


def test_jobs_share_before_the_registry_says_so(node: Open, place: str, tiny_source: Path) -> None:
    first = node("first")
    few = {"steps": 2, "upper_steps": 1}
    job = first.import_root("tiny", str(tiny_source), texts={"text-0": text(1, 280)}, alpha=60, options=few)
    told: list[dict[str, str]] = []
    put = first.registry.put_root

    def importing(ctx: JobContext) -> dict[str, Any]:
        ctx.registry.put_root = lambda record: (told.append(at(place)), put(record))  # type: ignore
        return import_root.run(ctx)

    attempt(first, job, importing)
    assert told == [first.plots.heads()]
    create(first, NEWS, text(2), alpha=60)
    assert at(place) == first.plots.heads()
    for seed in range(3, 6):
        attempt(first, first.update_domain(NEWS, text(seed)))
    assert attempt(first, first.maintenance.compact(NEWS), compact_plot.run)
    assert at(place) == first.plots.heads()
    old = first.plots.version(NEWS)

    replica = node("replica", "replica")
    forgotten: list[DeletedParts] = []
    replica.on_deleted = forgotten.append
    assert replica.fetching is not None
    first.create_tenant("acme")
    add_model(first, "acme.mood", old)
    assert replica.registry.catch_up()
    reader = replica.fetching.reader(old.id)
    assert replica.follow_erasures() == set()
    result = attempt(first, first.erase_from_domain(NEWS, text=text(5)), erase_text.run)
    assert result is not None
    assert old.id in result["versions"]
    assert at(place) == first.plots.heads()
    assert old.id in listed(open_objects(f"{place}/plots"))
    assert old.id in replica.follow_erasures()
    assert [old.id in one.plots for one in forgotten] == [True]
    reader.close()
    with replica.fetching.reader(old.id) as again, first.plots.reader(old.id) as left:
        for order in (2, 3):
            assert np.array_equal(again.ngrams(order), left.ngrams(order))


def test_without_the_bucket_a_job_does_not_end(node: Open, place: str, tiny_source: Path) -> None:
    """Its domain is there, and housekeeping shares it later."""
    first = node("first")
    filled(first, place)
    lone = publish_plot(first, NEWS, "b4444").id
    bucket = first._parts.bucket
    assert bucket is not None
    bucket.plots, right = "s3://nowhere-at-all/plots", bucket.plots
    with pytest.MonkeyPatch.context() as away:
        away.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            away.setenv(name, "x")
        pytest.importorskip("s3fs", reason="s3fs is not installed (pip install 'hmi-plot-store[remote]')")
        with pytest.raises(Unavailable):
            first._parts.share(NEWS)
    bucket.plots = right
    first._consistency.housekeeping()
    assert at(place)[NEWS] == lone


def test_full_depth_roots_have_words_alone(node: Open, place: str) -> None:
    """Their domains have unigrams without lower layers; they move as the others do."""
    first = node("first")
    add_root(first)
    words = publish_plot(first, "tiny/full", "b1", words=True)
    first._parts.share(words.id)
    publish_plot(first, "tiny/full", "b22")
    first._parts.share("tiny/full")
    assert np.array_equal(rows(first, words.id), rows(node("replica", "replica"), words.id))


def test_a_collection_keeps_what_models_are_on(
    node: Open, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = node("first")
    versions = filled(first, place)
    for value in range(5, 14):  # the bucket's list of the domain no longer has the model's version
        publish_plot(first, NEWS, f"b{value}" * value)
        first._parts.share(NEWS)
    remote = Remote(f"{place}/plots")
    assert plots_in_use(f"{place}/plots/") == {versions[0]}
    assert plots_in_use(f"{place}/files") == plots_in_use(f"{place}/elsewhere/plots") == set()
    assert remote.collect(age_s=0, keep=plots_in_use(f"{place}/plots")).objects
    monkeypatch.setattr(sharing, "PAUSE_S", 0.01)
    open_objects(f"{place}/plots").swap("collecting.json", b"{}", None)
    assert remote.collecting()
    publish_plot(first, NEWS, "b77")
    with pytest.raises(Conflict, match="collection"):
        share(first.plots, first._parts.bucket, NEWS, lambda: True, 0.05)
    threading.Timer(0.3, lambda: open_objects(f"{place}/plots").remove(["collecting.json"])).start()
    first._parts.share(NEWS)
    assert at(place) == first.plots.heads()
    replica = node("replica", "replica")
    assert np.array_equal(rows(first, versions[0]), rows(replica, versions[0]))
