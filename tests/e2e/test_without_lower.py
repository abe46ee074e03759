"""Tenants' models of each kind on a root without lower layers: alone and batched, from the PLOT and exact."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hmi.config import Settings
from hmi.core import ModelId
from hmi.engine import TextRequest
from hmi.manager import Manager
from hmi.model.root import load_root
from hmi.model.tokenizer import Text
from tests.e2e.conftest import CORPUS, QUICK, Home, mood_rows, pair_rows, tag_rows
from tests.e2e.test_kinds import figures

MOOD, PAIRS, TAGS, VECTORS = (ModelId("acme", name) for name in ("mood", "pairs", "tags", "vectors"))


@pytest.fixture(scope="module")
def deep(tiny_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    settings = Settings(data=tmp_path_factory.mktemp("deep") / "data", improve=False)
    manager = Manager(settings)
    manager.runner.starter.many = 1
    deep = Home(manager, settings, CORPUS[:30])
    deep.run(manager.import_root("deep", str(tiny_source), split=0))
    deep.run(manager.create_domain("deep/news", "\n".join(CORPUS).encode()))
    manager.create_tenant("acme")
    create: Callable[..., Any] = manager.create_model
    for model, domain, task, data in (
        (MOOD, "deep/news", "classification", mood_rows(7)),
        (PAIRS, "deep", "pair", pair_rows(7)),
        (TAGS, "deep/news", "tagging", tag_rows(7)),
        (VECTORS, "deep", "embedding", None),
    ):
        options = {} if data is None else QUICK
        deep.run(create(str(model), domain=domain, task=task, data=data, options=options))
    yield deep
    manager.close()


async def test_every_kind_answers_the_same_alone_batched_and_exact(deep: Home) -> None:
    inputs: list[tuple[ModelId, Text]] = []
    for line in deep.covered[:8]:
        inputs += [(MOOD, line), (PAIRS, (line, "bank acid")), (TAGS, line.split()), (VECTORS, line)]
    random.Random(1).shuffle(inputs)
    engine = deep.engine()
    await engine.start()
    together = await engine.infer([TextRequest(m, t, scores=True, provenance=True) for m, t in inputs])
    for (model, text), batched in zip(inputs, together, strict=True):
        (alone,) = await engine.infer([TextRequest(model, text, scores=True)])
        (exact,) = await engine.infer([TextRequest(model, text, scores=True, exact=True)])
        assert figures(batched), "an answer without numbers compares nothing"
        assert figures(alone) == pytest.approx(figures(batched), abs=1e-4)
        assert figures(exact) == pytest.approx(figures(batched), abs=0.01)
        assert batched.provenance is not None
        assert set(batched.provenance.plot) == {"unigram", "miss"}
        assert batched.provenance.plot["miss"] == 0
    await engine.stop()


def test_a_module_changes_every_layer(deep: Home) -> None:
    (folder,) = (deep.settings.data / "roots" / "deep").glob("*")
    layers = load_root(folder).info.shape.layers
    changed = {name.split(".")[2].split("-")[0] for name in deep.state(str(MOOD)) if ".sites." in name}
    assert changed == {str(i) for i in range(layers)}
    assert deep.manager.registry.model(MOOD).live.ramps == tuple(range(layers))
