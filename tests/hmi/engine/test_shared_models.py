"""A node with an empty data folder answers as the node that trained: its files come from the bucket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hmi.api.process.building import build_engine
from hmi.config import Settings
from hmi.core import ModelId
from hmi.engine.texts.request import TextRequest
from hmi.manager import Manager
from hmi.metrics import Metrics
from tests.tiny import random_texts

MODEL = ModelId("acme", "m")
TEXTS = random_texts(12, 77)


async def answers_of(manager: Manager, *, exact: bool = False) -> list[Any]:
    engine = build_engine(manager, Metrics())
    await engine.start()
    try:
        # One by one: texts that run in other batches may differ in their last bit.
        return [(await engine.infer([TextRequest(MODEL, t, exact=exact, scores=True)]))[0] for t in TEXTS]
    finally:
        await engine.stop()


def node(data: Path, bucket: Path, **settings: Any) -> Manager:
    return Manager(
        Settings(data=data, bucket=str(bucket), job_workers=0, precision="fp32", improve=False, **settings)
    )


async def test_a_replica_answers_with_the_primarys_bits(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = node(folder, tmp_path / "bucket")
    first.registry.lead("http://first")
    first._housekeeping()  # which puts what the folder had before
    usual, exact = await answers_of(first), await answers_of(first, exact=True)
    second = node(tmp_path / "b", tmp_path / "bucket", role="replica")
    here = second.root_files._layout.root("tiny", second.registry.root("tiny").version)
    assert not here.exists()
    found = await answers_of(second)
    assert not (here / "lower.safetensors").exists(), "only the exact reference reads the lower layers"
    assert [(a.scores, a.label) for a in found] == [(a.scores, a.label) for a in usual]
    assert [a.scores for a in await answers_of(second, exact=True)] == [a.scores for a in exact]

    job = first.root_shards.make("tiny")
    assert first.runner.run_one(job.job).state == "succeeded"
    first.root_shards.prioritise("tiny", "low")
    assert second.registry.catch_up()
    low = await answers_of(first)
    assert [a.scores for a in await answers_of(second)] == [a.scores for a in low]
    assert (here / "shards").is_dir()
    assert "is loaded whole" not in caplog.text, "both ran on shards"
    for manager in (first, second):
        manager.close()
