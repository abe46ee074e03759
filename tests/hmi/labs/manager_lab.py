"""Roots, PLOTs and models, published as jobs publish them but without training."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hmi.core import ModelId, RootRecord, now
from hmi.manager import Manager
from plot_store import Schema, VersionInfo
from tests.hmi.labs.runner_bodies import version_by

ROWS = b"".join(b'{"text": "good %d", "label": "%c"}\n' % (i, b"ab"[i % 2]) for i in range(6))
PAIRS = ROWS.replace(b'", "label"', b'", "text_pair": "fine", "label"')


def publish_plot(manager: Manager, ref: str, build: str = "b1", **meta: Any) -> VersionInfo:
    parent = ref.rpartition("/")[0] or None
    if ref in manager.plots.refs():
        parent = None
    name = f"{ref}.{build}".replace("/", ":")
    with manager.plots.writer(ref, schema=Schema(dim=4, vocab=50), parent=parent, build=name) as w:
        w.add(1, np.arange(1, 5, dtype=np.uint32).reshape(4, 1), np.full((4, 3, 4), len(build), np.float32))
        return w.publish(meta={"root_version": "r1", "alpha": 30.0, "report": {}, "job": build, **meta})


def root_record(name: str, version: str = "r1", **changes: Any) -> RootRecord:
    fields: dict[str, Any] = {"source": {"kind": "folder"}, "dim": 4, "layers": 4, "split": 2, "fidelity": {}}
    fields |= {"bytes": 1, "job": "j0", "created": now()}
    return RootRecord(name=name, version=version, **{**fields, **changes})


def add_root(manager: Manager, name: str = "tiny") -> None:
    # The record comes first: a running server's housekeeping removes a root's PLOT that has no record.
    (manager.settings.data / "roots" / name / "r1").mkdir(parents=True)
    manager.registry.put_root(root_record(name))
    publish_plot(manager, name)


def add_model(manager: Manager, name: str, plot: VersionInfo, job: str = "j1", number: float = 1.0) -> str:
    artefact, size = manager.adapters.put({"head.out.bias": torch.tensor([number])})
    version = version_by(job, artefact=artefact, domain=plot.ref, plot_version=plot.id, bytes=size)
    manager.registry.publish_model(ModelId.parse(name), version)
    return artefact


def end(manager: Manager, job: str) -> None:
    manager.registry.update_job(job, lambda r: r.model_copy(update={"state": "failed"}))
