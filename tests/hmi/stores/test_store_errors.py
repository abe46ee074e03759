"""The PLOT store's errors as a client sees them; a disk that fails once is never mistaken for damage."""

from __future__ import annotations

import ast
import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import plot_store
from hmi import errors
from hmi.api.protocols.errors import STATUS, known
from hmi.config import Settings
from hmi.core import DomainId
from hmi.manager import Manager
from hmi.stores.plot.miss_files import MissFiles
from hmi.stores.plot.miss_recorder import MissRecorder
from hmi.stores.plot.plots import as_hmi, open_plots, plot_errors
from hmi.stores.records.registry_database import RegistryDatabase
from hmi.stores.tensors.adapter_store import AdapterStore
from plot_store import PlotStoreError, Schema
from plot_store.ground.names import is_ref
from tests.hmi.stores.test_misses import LAW, NEWS, kept, look, version

HMI = Path(errors.__file__).parent
TABLE: dict[type[PlotStoreError], tuple[type[errors.HmiError], int]] = {
    plot_store.NotFound: (errors.NotFound, 404),
    plot_store.Collected: (errors.NotFound, 410),
    plot_store.Conflict: (errors.Conflict, 409),
    plot_store.InUse: (errors.Conflict, 409),
    plot_store.Invalid: (errors.InvalidInput, 422),
    plot_store.Closed: (errors.Unavailable, 503),
    plot_store.Forked: (errors.HmiError, 500),
    plot_store.ReadOnly: (errors.HmiError, 500),
    plot_store.Damaged: (errors.Damaged, 500),
    plot_store.FormatTooNew: (errors.Damaged, 500),
    plot_store.StoreIO: (errors.Unavailable, 503),
    plot_store.StoreFull: (errors.StorageFull, 507),
}


def below(kind: type[PlotStoreError]) -> set[type[PlotStoreError]]:
    direct = set(kind.__subclasses__())
    return direct.union(*map(below, direct))


def refused(*_: Any, **__: Any) -> Any:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_the_table_has_every_error_of_the_store() -> None:
    assert {kind for kind in below(PlotStoreError) if kind.__module__ == "plot_store.ground.errors"} == set(
        TABLE
    )


@pytest.mark.parametrize("theirs", TABLE)
def test_each_error_becomes_ours_with_the_stores_words(theirs: type[PlotStoreError]) -> None:
    ours, status = TABLE[theirs]
    found = as_hmi(theirs("what is wrong: the cure"))
    assert (type(found), found.message) == (ours, "what is wrong: the cure")
    answered = known(theirs("what is wrong: the cure"))
    if ours is errors.HmiError:
        assert answered is None, "a bug of ours: the server logs it and tells no details"
    else:
        assert answered is not None
        assert (STATUS[answered.kind], answered.message) == (status, "what is wrong: the cure")


def test_a_disk_that_fails_once_is_unavailable_and_then_all_is_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unigram = {1: (np.array([[1]], np.uint32), np.ones((1, 3, 4), np.float32))}
    with open_plots(tmp_path / "plots") as plots:
        with plots.writer("tiny", schema=Schema(dim=4, vocab=50), build="b") as writer:
            first = writer.publish()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", refused)
            with pytest.raises(errors.Unavailable, match=os.strerror(errno.EIO)), plot_errors():
                plots.append("tiny", unigram)
        assert plots.version("tiny") == first
        assert plots.append("tiny", unigram).entries[1] == 1
        assert plots.verify().ok


def test_an_artefact_that_cannot_be_read_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    store = AdapterStore(tmp_path / "adapters")
    name, _ = store.put({"a": torch.zeros(3)})
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refused)
        with pytest.raises(errors.Unavailable, match="try again"):
            store.get(name)
    assert store.get(name)["a"].shape == (3,)


def test_a_registry_that_the_disk_refuses_is_not_damaged(tmp_path: Path) -> None:
    (tmp_path / "registry").write_text("a file where the folder should be")
    with pytest.raises(errors.Unavailable, match="try again"):
        RegistryDatabase.open(tmp_path / "registry")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "data.mdb").write_bytes(b"\1" * 8192)
    with pytest.raises(errors.Damaged, match="backup"):
        RegistryDatabase.open(damaged)


def test_recorded_misses_outlive_a_disk_that_fails_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = MissFiles(tmp_path / "misses")
    files.switch_on(NEWS)
    recorder = MissRecorder(files, flush_s=60)
    recorder.start()
    look(recorder, version(NEWS), [5])
    recorder.flush()
    look(recorder, version(NEWS), [5])
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", refused)
        for reads in (recorder.flush, lambda: files.all(NEWS)):
            with pytest.raises(errors.Unavailable, match="try again"):
                reads()
    recorder.stop()
    assert kept(files, NEWS) == {(0, 5, 0): 2}, "nothing was begun anew"


def test_a_file_that_fails_holds_up_no_other(tmp_path: Path) -> None:
    files = MissFiles(tmp_path / "misses")
    recorder = MissRecorder(files, flush_s=60)
    for domain in (NEWS, LAW):
        files.switch_on(domain)
    recorder.start()
    for domain in (NEWS, LAW):
        look(recorder, version(domain), [5])
    epoch = files.epoch(NEWS)
    (files.folder / "tiny.news" / f"{version(NEWS).id}.{epoch}.safetensors").mkdir()  # cannot be read
    with pytest.raises(errors.Unavailable, match="could not be read"):
        recorder.flush()
    assert kept(files, LAW) == {(0, 5, 0): 1}
    recorder.stop()


def test_a_catalogue_that_cannot_be_read_is_unavailable_to_a_command(tmp_path: Path) -> None:
    from hmi.manager.maintenance import probe_plots

    Manager(Settings(data=tmp_path, job_workers=0)).close()
    (tmp_path / "plots" / "catalogue" / "data.mdb").unlink()
    (tmp_path / "plots" / "catalogue" / "data.mdb").mkdir()
    with pytest.raises(errors.Unavailable, match="cannot be read"):
        probe_plots(tmp_path)


def test_only_public_names_of_the_store_are_used() -> None:
    """Public names are those of `plot_store` and the modules that its documentation names."""
    found = set()
    for path in HMI.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            found |= {module for module in modules if module.split(".")[0] == "plot_store"}
    database = {f"plot_store.database.{name}" for name in ("checksum", "database", "lmdb_errors", "shared")}
    ground = {"plot_store.ground.holding", "plot_store.ground.names"}
    assert found <= {"plot_store", "plot_store.remote.objects", *ground, *database}


def test_a_domain_is_as_deep_as_the_store_takes_it() -> None:
    deepest = "/".join("abcdefg")
    assert str(DomainId.parse(deepest)) == deepest
    assert is_ref(deepest)
    assert not is_ref(f"{deepest}/h")
    with pytest.raises(errors.InvalidInput, match="has 8 parts: use at most 7"):
        DomainId.parse(f"{deepest}/h")
