"""Roots on shards in the engine: a cold root answers before it is loaded, one larger than memory, low
priority."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hmi.core import ModelId, Objective
from hmi.engine import Engine, TextRequest
from hmi.engine.admit.bundles import Bundles
from hmi.engine.admit.streamed import Streamed
from hmi.errors import Damaged
from hmi.jobs.root.shard_root import IMPORTANCE_IGNORED
from hmi.metrics import Metrics
from hmi.model.sources.root import load_root
from hmi.stages.elastic_shards.making import FOLDER, layer_file
from hmi.stages.elastic_shards.store import open_shards
from hmi.stages.planner import RoundRobin
from tests.e2e.conftest import CORPUS, Home

MOOD, OTHER, TAGS = ModelId("acme", "mood"), ModelId("globex", "mood"), ModelId("globex", "tags")


@pytest.fixture(scope="module")
def folder(home: Home) -> Iterator[Path]:
    """The root's folder, with shards; `MOOD` allows other answers under load, `OTHER` does not."""
    home.run(home.manager.root_shards.make("tiny", "\n".join(CORPUS).encode(), importance=True))
    allow(home, MOOD, 0.8)
    yield folder_of(home)
    allow(home, MOOD, None)
    record = home.manager.registry.root("tiny").model_copy(update={"shards": None})
    home.manager.registry.put_root(record)
    shutil.rmtree(folder_of(home) / "shards")


def folder_of(home: Home) -> Path:
    record = home.manager.registry.root("tiny")
    return Path(home.settings.data) / "roots" / record.name / record.version


def allow(home: Home, model: ModelId, agreement: float | None) -> None:
    objective = Objective(agreement_under_load=agreement)
    home.manager.registry.change_model(model, lambda r: r.model_copy(update={"objective": objective}))


@asynccontextmanager
async def engine_of(home: Home, **limits: Any) -> Any:
    m = home.manager
    bundles = Bundles(home.settings.data, m.registry, m.plots, m.adapters, m.lowers, "fp32", **limits)
    engine = Engine(bundles, replace(home.settings), Metrics(), None, RoundRobin())
    await engine.start()
    try:
        yield engine, bundles
    finally:
        await engine.stop()


def ask(model: ModelId, text: Any, *, exact: bool = False) -> list[TextRequest]:
    return [TextRequest(model, text, exact=exact, scores=True, provenance=True)]


async def test_the_job_tells_what_it_made(home: Home, folder: Path) -> None:
    shards = home.manager.registry.root("tiny").shards
    assert shards is not None
    assert shards.models >= 2  # those of classification, of other tests too
    assert set(shards.agreement) == {"2", "3", "4", "5", "6"}
    assert shards.agreement["6"] >= 0.9
    assert shards.bytes > 0
    (job,) = (job for job in home.manager.registry.jobs() if job.kind == "shard_root")
    assert job.result is not None
    assert job.result["metrics"]["warnings"] == [IMPORTANCE_IGNORED]
    assert not (folder / FOLDER / "importance.json").exists()


async def test_a_cold_root_answers_on_shards_and_then_in_full(
    home: Home, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the root is loaded, one model's texts are answered from shards; those of a model that allows no
    other answers, and exact ones, wait. No request is lost, and answers in full have a normal server's
    bits."""
    go_on, whole = threading.Event(), load_root

    def slow(*given: Any, **more: Any) -> Any:
        assert go_on.wait(60)
        return whole(*given, **more)

    texts = home.covered[:8]
    async with engine_of(home) as (normal, _):
        usual = {
            t: (await normal.infer(ask(OTHER, t)), await normal.infer(ask(MOOD, t, exact=True)))
            for t in texts
        }
        full = {t: await normal.infer(ask(MOOD, t)) for t in texts}
    monkeypatch.setattr("hmi.engine.admit.bundles.load_root", slow)
    async with engine_of(home) as (engine, bundles):
        early = [await engine.infer(ask(MOOD, t)) for t in texts]
        assert all(r.provenance.stages["shards"].endswith("bits") for (r,) in early)
        waiting = [asyncio.create_task(engine.infer(ask(OTHER, t))) for t in texts]
        exact = [asyncio.create_task(engine.infer(ask(MOOD, t, exact=True))) for t in texts]
        more = [asyncio.create_task(engine.infer(ask(MOOD, t))) for t in texts]
        await asyncio.gather(*more)
        assert not any(task.done() for task in (*waiting, *exact))
        go_on.set()
        others, exacts = await asyncio.gather(*waiting), await asyncio.gather(*exact)
        after = [await engine.infer(ask(MOOD, t)) for t in texts]
        assert not bundles._earlies.values()
    for t, (o,), (e,), (a,) in zip(texts, others, exacts, after, strict=True):
        assert a.scores == full[t][0].scores
        assert "shards" not in a.provenance.stages
        assert o.scores == pytest.approx(usual[t][0][0].scores, abs=1e-6)
        assert e.scores == pytest.approx(usual[t][1][0].scores, abs=1e-6)
    agree = sum(e.label == f[0].label for (e,), f in zip(early, full.values(), strict=True))
    assert agree >= 6


async def test_a_root_larger_than_memory_is_served_within_the_limit(
    home: Home, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts that allow it run on the shards that fit; all others on exact ones, read for each batch."""
    monkeypatch.setattr(
        "hmi.engine.admit.streamed.working_bytes", lambda store: 0
    )  # this root has but two layers
    with open_shards(folder) as store:
        limit = store.full_bytes // 3
    texts = home.covered[:5]
    async with engine_of(home) as (normal, _):
        usual = [(await normal.infer(ask(OTHER, t)), await normal.infer(ask(TAGS, t.split()))) for t in texts]
    async with engine_of(home, root_bytes=limit) as (engine, bundles):
        for t, ((other,), (tags,)) in zip(texts, usual, strict=True):
            (mine,), (tagged,) = await engine.infer(ask(OTHER, t)), await engine.infer(ask(TAGS, t.split()))
            assert mine.scores == pytest.approx(other.scores, abs=1e-5)
            assert tagged.tags == tags.tags
            (some,) = await engine.infer(ask(MOOD, t))
            assert "shards" in some.provenance.stages
        (upper,) = bundles._uppers.values()
        assert isinstance(upper.executor, Streamed)
        pipeline = upper.executor.planned.pipeline
        assert sum(len(blob) for blob in pipeline.preloaded.values()) <= limit
        assert {t.bytes for t in upper.executor.planned.traces} == {upper.executor.planned.planned_bytes}


async def test_a_root_of_low_priority_keeps_its_shards(home: Home, folder: Path) -> None:
    home.manager.root_shards.prioritise("tiny", "low")
    try:
        async with engine_of(home) as (engine, bundles):
            (answer,) = await engine.infer(ask(MOOD, home.covered[0]))
            assert answer.label
            (upper,) = bundles._uppers.values()
            assert isinstance(upper.executor, Streamed)
            assert upper.executor.planned.planned_bytes == 0
    finally:
        home.manager.root_shards.prioritise("tiny", "normal")


async def test_damaged_shards_are_reported_and_the_whole_root_answers(home: Home, folder: Path) -> None:
    path = folder / FOLDER / layer_file(1)
    sound = path.read_bytes()
    path.write_bytes(bytes(len(sound)))
    try:
        async with engine_of(home) as (engine, _):
            with pytest.raises(Damaged, match=r"shard .* of layer 1 .* fails its checksum"):
                await engine.infer(ask(MOOD, home.covered[0]))
            (answer,) = await engine.infer(ask(OTHER, home.covered[0]))
            assert answer.label
    finally:
        path.write_bytes(sound)
