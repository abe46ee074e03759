"""The manager: keys, deletion, garbage collection, consistency of its stores, settings."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
import torch

import plot_store
from hmi.config import Settings
from hmi.core import ModelId
from hmi.errors import Conflict, Damaged, InvalidInput, NotFound
from hmi.manager import Manager
from hmi.stores.plot.plots import as_hmi, plot_errors
from tests.hmi.labs.manager_lab import PAIRS, add_model, add_root, publish_plot
from tests.hmi.labs.runner_bodies import version_by


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
    folder = manager.settings.data / "adapters"
    for name in (one, two):
        os.utime(folder / f"{name}.safetensors", (0, 0))
    manager.delete_model("acme.mood")
    manager.collect_garbage()
    assert manager.adapters.get(one), "a request that is under way still reads what it pinned"
    for name in (one, two):
        os.utime(folder / f"{name}.safetensors", (0, 0))
    manager.collect_garbage()
    assert manager.adapters.names() == {two}, "what another model uses stays"
    assert [m.name for m in manager.models()] == ["twin"]
    with pytest.raises(NotFound):
        manager.model("acme.mood")


def test_deleting_a_tenant_removes_all_that_is_its_own(manager: Manager, tmp_path: Path) -> None:
    add_root(manager)
    plot = manager.plots.version("tiny")
    for name in ("acme", "beta"):
        manager.create_tenant(name)
        add_model(manager, f"{name}.mood", plot, f"j-{name}", 1.0)
        add_model(manager, f"{name}.own", plot, f"k-{name}", float(len(name) + ord(name[0])))
    secret = manager.create_model("acme.new", domain="tiny", task="pair", data=PAIRS)
    assert manager.delete_tenant("acme") == {"models": 2, "keys": 1, "jobs": 1, "files": 0, "artefacts": 1}
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
        "root tiny has lost its files",
        "version 1 of model acme.lost has lost its artefact",
        "version 1 of model acme.lost has lost its PLOT version",
        "version 1 of model acme.mood has lost its artefact",
    ]


def test_what_only_a_descendants_version_needs_stays(manager: Manager, tmp_path: Path) -> None:
    add_root(manager)
    lower, _ = manager.lowers.put({"weight": torch.zeros(2)}, {})
    old = publish_plot(manager, "tiny/med", lower=lower)
    publish_plot(manager, "tiny/med/sub")
    for build in range(manager.settings.plot_keep_versions + 1):
        publish_plot(manager, "tiny/med", f"later{build}")
    os.utime(tmp_path / "data" / "lowers" / f"{lower}.safetensors", (0, 0))
    manager.collect_garbage()
    assert old not in manager.plots.history("tiny/med")
    assert old in manager.plots.chain("tiny/med/sub")
    assert manager.lowers.has(lower)
    manager.export_domain("tiny/med/sub", tmp_path / "sub.plot", lambda done, total: None)


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
