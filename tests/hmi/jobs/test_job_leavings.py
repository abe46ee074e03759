"""A job that did not succeed leaves no segment of its build and no files of its root, and
removes nothing of others."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from hmi.manager import Manager
from plot_store import Schema
from tests.hmi.labs.manager_lab import add_root, end, root_record


def half_build(manager: Manager, ref: str, build: str) -> int:
    """Leave a build with finished segments; returns how many files the store has gained."""
    before = manager.plots.info().segments
    ids = np.stack(np.meshgrid(*[np.arange(1, 11)] * 3), -1).reshape(-1, 3).astype(np.uint32)
    schema = Schema(dim=4, vocab=50)
    parent = ref.rpartition("/")[0] or None
    with manager.plots.writer(
        ref, schema=schema, parent=parent, build=build, segment_bytes=1 << 14
    ) as writer:
        writer.add(3, ids, np.ones((len(ids), 3, 4), np.float32))
    return manager.plots.info().segments - before


def root_files(manager: Manager, name: str, version: str) -> Path:
    folder = manager.settings.data / "roots" / name / version
    folder.mkdir(parents=True)
    (folder / "root.json").write_text("{}")
    return folder


@pytest.mark.parametrize("how", ["cancelled", "failed"])
def test_a_build_that_does_not_succeed_leaves_no_segments(manager: Manager, how: str) -> None:
    add_root(manager)
    job = manager.create_domain("tiny/news", b"text\nmore").job
    kept = manager.plots.info().segments
    assert half_build(manager, "tiny/news", job) > 1
    assert half_build(manager, "tiny/other", "another-build") >= 0
    if how == "cancelled":
        manager.cancel_job(job)
    else:
        end(manager, job)
        manager.runner._tidy(job)
    assert not manager.plots.abandon(job), "the build is still there"
    assert manager.plots.info().segments > kept, "the other build shares its content, so the files stay"
    assert manager.plots.abandon("another-build")
    assert manager.plots.info().segments == kept
    assert "tiny/news" not in manager.plots.refs()
    assert manager.plots.verify().damages == ()


def test_an_import_that_does_not_succeed_leaves_no_root(manager: Manager, tiny_source: Path) -> None:
    job = manager.import_root("other", str(tiny_source)).job
    folder = root_files(manager, "other", job)
    aside = root_files(manager, "other", f".{job}.12345678.tmp")
    stranger = root_files(manager, "other", "r9")
    assert half_build(manager, "other", job) > 1
    manager.cancel_job(job)
    assert not folder.exists()
    assert not aside.exists()
    assert stranger.exists()
    assert manager.plots.info().segments == 0


def test_a_published_root_stays_whatever_became_of_its_job(manager: Manager, tiny_source: Path) -> None:
    job = manager.import_root("other", str(tiny_source)).job
    folder = root_files(manager, "other", job)
    manager.registry.put_root(root_record("other", job, job=job))
    manager.cancel_job(job)
    assert folder.exists()


def test_cleaning_removes_old_root_folders_that_nothing_names(manager: Manager, tiny_source: Path) -> None:
    add_root(manager)
    live = root_files(manager, "other", manager.import_root("other", str(tiny_source)).job)
    old, young = root_files(manager, "other", "jold"), root_files(manager, "other", "jyoung")
    long_ago = time.time() - 7200
    for folder in (live, old, manager.settings.data / "roots" / "tiny" / "r1"):
        os.utime(folder, (long_ago, long_ago))
    manager.runner._clean()
    assert not old.exists()
    assert young.exists()
    assert live.exists()
    assert (manager.settings.data / "roots" / "tiny" / "r1").exists()
