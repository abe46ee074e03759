"""An update of a PLOT keeps what was covered, shares only rows of the same lower layers,
and rests on one version."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import plot_store
from hmi.config import Settings
from hmi.errors import Conflict
from hmi.jobs.plot.write_plot import Wanted, not_stored, write_version
from hmi.jobs.runtime.context import JobContext
from hmi.manager import Manager
from hmi.model.sources.locality import apply_locality
from hmi.model.sources.lower import LocalLower
from hmi.model.sources.root import load_root, split_encoder
from hmi.model.sources.source import load_encoder
from hmi.stores.plot.plot_meta import PlotMeta
from plot_store import VersionInfo
from tests.hmi.labs.api_world import hmi
from tests.hmi.labs.build_lab import run, text


@pytest.fixture(scope="module")
def manager(tiny_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    opened = Manager(Settings(data=tmp_path_factory.mktemp("updates") / "data", job_workers=0))
    few = {"steps": 2, "upper_steps": 1}
    run(
        opened,
        opened.import_root(
            "tiny", str(tiny_source), texts={"text-0.txt": text(1, 280)}, alpha=5, options=few
        ),
    )
    run(opened, opened.create_domain("tiny/news", text(2, 40), alpha=60))
    yield opened
    opened.close()


Ngram = tuple[int, ...]


def own(manager: Manager, version: str, order: int) -> set[Ngram]:
    with manager.plots.reader(version) as reader:
        return {tuple(map(int, ngram)) for ngram in reader.ngrams(order)}


def test_pretraining_again_keeps_what_was_covered(manager: Manager) -> None:
    run(manager, manager.create_domain("tiny/med", text(3, 40), alpha=60))
    old = manager.plots.version("tiny/med")
    few = {"pretrain_steps": 2, "min_difference": 0}
    run(manager, manager.update_domain("tiny/med", text(4, 40), alpha=20, pretrain=True, options=few))
    new = manager.plots.version("tiny/med")
    assert new.meta["lower"] is not None
    for order in (2, 3):
        assert own(manager, old.id, order) < own(manager, new.id, order)
    ngrams = np.array(sorted(own(manager, old.id, 3)), np.uint32)
    with manager.plots.reader(old.id) as before, manager.plots.reader(new.id) as after:
        assert (after.depths(3, ngrams) == 0).all()
        assert not np.array_equal(before.get(3, ngrams)[0], after.get(3, ngrams)[0]), (
            "computed by the new layers"
        )
    # A branch under it computes with the new layers, so it does not share the root's rows.
    run(manager, manager.create_domain("tiny/med/sub", text(1, 280), alpha=5))
    assert own(manager, "tiny/med/sub", 3) & own(manager, "tiny", 3)


def test_only_rows_of_the_same_lower_layers_are_shared(manager: Manager) -> None:
    with manager.plots.reader("tiny/news") as reader:
        mine, roots = reader.ngrams(3), np.array(sorted(own(manager, "tiny", 3)), np.uint32)
        assert len(mine)
        assert len(roots)
        assert not own(manager, "tiny/news", 3) & own(manager, "tiny", 3)
        absent = np.array([[1, 1, 1]], np.uint32)
        wanted = np.concatenate([mine, roots, absent])
        assert not_stored(reader, 3, wanted, None).tolist() == absent.tolist()
        assert not_stored(reader, 3, wanted, "other-layers").tolist() == wanted.tolist()
        assert reader.depths(3, roots[:1]).tolist() == [1]


def test_a_root_may_be_updated_too(manager: Manager) -> None:
    old = manager.plots.version("tiny")
    run(manager, manager.update_domain("tiny", text(6, 40), alpha=50))
    new = manager.plots.version("tiny")
    assert new.id != old.id
    assert own(manager, old.id, 3) < own(manager, new.id, 3)
    assert own(manager, new.id, 1) == own(manager, old.id, 1), "every token still has its unigram"
    assert manager.plots.version("tiny/news").parent == old.id


@pytest.mark.parametrize("extend", [True, False])
def test_an_update_stands_on_the_version_that_it_was_chosen_against(manager: Manager, extend: bool) -> None:
    first = manager.plots.version("tiny/news")
    root = manager.registry.root("tiny")
    lower = load_root(manager.settings.data / "roots" / "tiny" / root.version, with_lower=True).lower
    assert lower is not None
    second = _write(manager, lower, first.id, extend, {"n": 2})
    with pytest.raises((Conflict, plot_store.Conflict), match=r"moved|is at"):
        _write(manager, lower, first.id, extend, {"n": 3})
    assert manager.plots.version("tiny/news").id == second.id
    manager.rollback_domain("tiny/news", first.id)


def _write(
    manager: Manager, lower: LocalLower, onto: str, extend: bool, meta: Mapping[str, Any]
) -> VersionInfo:
    job = manager.runner.submit("build_plot", {})
    ctx = JobContext(job, manager.settings, manager.registry)
    wanted = [Wanted(3, 1, [np.array([[5, 6, 7]], np.uint32)])]
    try:
        return write_version(
            ctx,
            "tiny/news",
            lower,
            wanted,
            parent=None,
            onto=onto,
            extend=extend,
            meta=lambda stored: PlotMeta("", report={"stored": stored[3], **meta}),
        )
    finally:
        ctx.close()
        manager.cancel_job(job.job)


def test_an_archive_is_accepted_only_where_its_root_is(
    manager: Manager, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive, data = tmp_path / "archive", manager.settings.data
    manager.plots.export("tiny/news", archive)
    Manager(Settings(data=tmp_path / "empty", job_workers=0)).close()
    told = hmi(capsys, "store", "import", archive, "--data", tmp_path / "empty", code=1)
    assert "has none as root 'tiny'" in told
    told = hmi(capsys, "store", "import", archive, "--as", "other/news", "--data", data, code=1)
    assert "has none as root 'other'" in told
    with ManagerAt(tmp_path / "empty") as empty:
        assert empty.plots.refs() == {}
    told = hmi(capsys, "store", "import", archive, "--as", "tiny/copy", "--json", "--data", data)
    assert json.loads(told)["domain"] == "tiny/copy"
    assert "tiny/copy" in manager.plots.refs()


class ManagerAt:
    def __init__(self, data: Path) -> None:
        self._manager = Manager(Settings(data=data, job_workers=0))

    def __enter__(self) -> Manager:
        return self._manager

    def __exit__(self, *_: object) -> None:
        self._manager.close()


def test_locality_weights_are_made_again_from_a_root(
    manager: Manager, tiny_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, file = manager.settings.data, tmp_path / "locality.zst"
    assert "--source" in hmi(capsys, "root", "export-locality", "--help")
    hmi(capsys, "root", "export-locality", "tiny", file, "--data", data)
    found = file.read_bytes()
    hmi(capsys, "root", "export-locality", "tiny", file, "--source", tiny_source, "--data", data)
    assert file.read_bytes() == found, "the root knows its source's folder"
    record = manager.registry.root("tiny")
    root = load_root(data / "roots" / "tiny" / record.version, with_lower=True)
    parts = split_encoder(load_encoder(tiny_source), 2, root.tokenizer.cls_id)
    assert apply_locality(file, parts)["fidelity"] == record.fidelity
    assert root.lower is not None
    moved = 0.0
    start = dict(split_encoder(load_encoder(tiny_source), 2, root.tokenizer.cls_id)[0].named_parameters())
    for (name, made), kept in zip(parts[0].named_parameters(), root.lower.parameters(), strict=True):
        scale = float((kept - start[name]).detach().abs().max())
        moved = max(moved, scale)
        torch.testing.assert_close(made, kept, atol=scale / 127 + 1e-6, rtol=0)
    assert moved > 0.01, "the root never differed from its source"
