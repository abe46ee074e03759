"""Tenants' models of each kind on a root without lower layers: alone and batched, from the PLOT and exact."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hmi.config import Settings
from hmi.core import ModelId
from hmi.engine import TextRequest
from hmi.errors import Conflict, InvalidInput
from hmi.manager import Manager
from hmi.manager.roots import export_locality
from hmi.metrics import Metrics
from hmi.model.sources.root import load_root
from hmi.model.text.tokenizer import Text
from tests.e2e.conftest import CORPUS, QUICK, ROOT_OPTIONS, ROOT_TEXT, Home, mood_rows, pair_rows, tag_rows
from tests.e2e.engine.test_kinds import figures
from tests.hmi.labs.api_world import hmi
from tests.hmi.model.test_families import write_source

MOOD, PAIRS, TAGS, VECTORS = (ModelId("acme", name) for name in ("mood", "pairs", "tags", "vectors"))


@contextmanager
def home_of(source: Path, folder: Path, split: int = 0) -> Iterator[Home]:
    """A root of this source and split, by default without lower layers, and a model of each kind on it."""
    settings = Settings(data=folder, improve=False)
    manager = Manager(settings)
    deep = Home(manager, settings, CORPUS[:30])
    learnt: dict[str, Any] = {"texts": {"text-0.txt": ROOT_TEXT}, "options": ROOT_OPTIONS} if split else {}
    deep.run(manager.import_root("deep", str(source), split=split, **learnt))
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
    try:
        yield deep
    finally:
        manager.close()


@pytest.fixture(scope="module")
def deep(tiny_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    with home_of(tiny_source, tmp_path_factory.mktemp("deep") / "data") as made:
        yield made


@pytest.mark.parametrize(("family", "split"), [("roberta", 0), ("roberta", 2), ("xlm-roberta", 0)])
async def test_roots_of_other_families_answer_too(family: str, split: int, tmp_path: Path) -> None:
    with home_of(write_source(family, tmp_path / family), tmp_path / "data", split) as home:
        await answers_are_equal(home, split)


async def test_every_kind_answers_the_same_alone_batched_and_exact(deep: Home) -> None:
    await answers_are_equal(deep)


async def answers_are_equal(deep: Home, split: int = 0) -> None:
    inputs: list[tuple[ModelId, Text]] = []
    for line in deep.covered[:8]:
        inputs += [(MOOD, line), (PAIRS, (line, "bank acid")), (TAGS, line.split()), (VECTORS, line)]
    random.Random(1).shuffle(inputs)
    metrics = Metrics()
    engine = deep.engine(metrics)
    await engine.start()
    together = await engine.infer([TextRequest(m, t, scores=True, provenance=True) for m, t in inputs])
    for (model, text), batched in zip(inputs, together, strict=True):
        (alone,) = await engine.infer([TextRequest(model, text, scores=True)])
        (exact,) = await engine.infer([TextRequest(model, text, scores=True, exact=True)])
        assert figures(batched), "an answer without numbers compares nothing"
        assert figures(alone) == pytest.approx(figures(batched), abs=1e-4)
        assert figures(exact) == pytest.approx(figures(batched), abs=0.5 if split else 0.01)
        assert batched.provenance is not None
        if not split:
            assert set(batched.provenance.plot) == {"unigram", "miss"}
        assert batched.provenance.plot["miss"] == 0
    await engine.stop()
    use = metrics.usage.of("acme")
    assert use.inputs == 3 * len(inputs)
    assert use.deep == (0 if split else use.inputs)


def test_a_module_changes_every_layer(deep: Home) -> None:
    (folder,) = (deep.settings.data / "roots" / "deep").glob("*")
    layers = load_root(folder).info.shape.layers
    changed = {name.split(".")[2].split("-")[0] for name in deep.state(str(MOOD)) if ".sites." in name}
    assert changed == {str(i) for i in range(layers)}
    assert deep.manager.registry.model(MOOD).live.ramps == tuple(range(layers))


def answering_root(home: Home, model: ModelId) -> str:
    """The root of which an answer says that it gave it."""

    async def ask() -> str:
        engine = home.engine()
        await engine.start()
        (found,) = await engine.infer([TextRequest(model, home.covered[0], provenance=True)])
        await engine.stop()
        assert found.provenance is not None
        return found.provenance.versions.root.split("/")[0]

    return asyncio.run(ask())


@pytest.fixture(scope="module")
def fast(deep: Home, tiny_source: Path) -> Home:
    """Beside the root without lower layers one with them, of the same source."""
    text = {"text-0.txt": ROOT_TEXT}
    deep.run(deep.manager.import_root("fast", str(tiny_source), texts=text, options=ROOT_OPTIONS))
    deep.run(deep.manager.create_domain("fast/news", "\n".join(CORPUS).encode()))
    return deep


def test_a_model_of_a_fast_domain_becomes_full_and_fast_again(
    fast: Home, tiny_source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rows of its domain train it; the root of the same source without lower layers answers."""
    deep = fast
    manager, data = deep.manager, ("--data", deep.settings.data)
    model = ModelId("acme", "depth")
    deep.run(
        manager.create_model(
            str(model), domain="fast/news", task="classification", data=mood_rows(7), options=QUICK
        )
    )
    assert manager.model(str(model)).depth == "auto"
    told = json.loads(hmi(capsys, "model", "depth", model, "full", "--json", *data))
    assert (told["depth"], told["root"]) == ("full", "fast")
    deep.run(manager.update_model(str(model), data=mood_rows(8), publish="always"))
    live = manager.model(str(model)).live
    assert (live.version, live.domain, live.root) == (2, "fast/news", "deep")
    assert live.plot_version == manager.plots.refs()["deep"].id
    assert any("was trained afresh" in warning for warning in live.metrics["warnings"])
    assert str(model) in manager.registry.while_unused("deep", lambda models, jobs: models)
    assert answering_root(deep, model) == "deep"
    manager.rollback_model(str(model), 1)
    assert answering_root(deep, model) == "fast"
    manager.rollback_model(str(model), 2)
    deep.run(manager.import_root("another", str(tiny_source), split=0))
    deep.run(manager.update_model(str(model), data=mood_rows(8), publish="always"))
    assert manager.model(str(model)).live.root == "deep", "it stays where its weights are"
    sibling = {"start": str(model), "epochs": 1}
    job = manager.create_model(
        "acme.sibling", domain="fast/news", task="classification", data=mood_rows(9), options=sibling
    )
    deep.run(job)
    assert manager.model("acme.sibling").live.root == "deep"
    assert b"depth" not in manager.model("acme.sibling").model_dump_json().encode()
    options = {"depth": "fast"}
    deep.run(manager.update_model(str(model), data=mood_rows(9), options=options, publish="always"))
    record = manager.model(str(model))
    assert (record.depth, record.live.root) == ("fast", "fast")
    shown = json.loads(hmi(capsys, "model", "show", model, "--json", *data))
    assert (shown["depth"], shown["root"], shown["versions"][1]["root"]) == ("fast", "fast", "deep")


def test_a_fast_version_answers_first_and_the_full_one_what_it_is_unsure_of(
    fast: Home, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """One command: the earlier version becomes a model of its own, the small level of a cascade."""
    manager, model = fast.manager, "acme.both"
    create: Callable[..., Any] = manager.create_model
    fast.run(create(model, domain="fast/news", task="classification", data=mood_rows(7), options=QUICK))
    full = {**QUICK, "depth": "full"}
    fast.run(manager.update_model(model, data=mood_rows(8), options=full, publish="always"))
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(mood_rows(21, count=300))
    for small, why in (
        ("acme.both@2", "is the one that answers: name one of 1"),
        ("acme.both@9", "version 9 of acme.both does not exist"),
        ("acme.mood@1", "no earlier version of the model itself"),
    ):
        with pytest.raises(InvalidInput, match=why):
            manager.profile_cascade(model, small=small, data=rows)
    hmi(capsys, "profile", "cascade", model, rows, "--small", f"{model}@1", "--data", fast.settings.data)
    info, first = manager.cascade(model), manager.model("acme.both-v1")
    assert (info.cascade.small, info.cascade.small_version, info.stale) == ("acme.both-v1", 1, None)
    assert (first.live.root, first.depth, first.live.artefact) == (
        "fast",
        "fast",
        info.cascade.small_artefact,
    )
    fast.run(manager.profile_cascade(model, small=f"{model}@1", data=rows))  # it is there already
    fast.run(manager.update_model("acme.both-v1", data=mood_rows(9), publish="always"))
    with pytest.raises(Conflict, match=r"is not version 1 of acme\.both"):
        manager.profile_cascade(model, small=f"{model}@1", data=rows)


def test_what_is_of_no_use_without_lower_layers_is_refused(deep: Home) -> None:
    manager, corpus = deep.manager, "\n".join(CORPUS).encode()
    with pytest.raises(InvalidInput, match="pretrain is of no use below root deep"):
        manager.create_domain("deep/more", corpus, pretrain=True)
    with pytest.raises(InvalidInput, match=r"options\.budget_bytes is of no use"):
        manager.create_domain("deep/more", corpus, options={"budget_bytes": 1 << 20})
    with pytest.raises(InvalidInput, match="root deep computes all layers: give full or auto"):
        manager.set_objective(str(MOOD), dict, {"depth": "fast"})
    with pytest.raises(Conflict, match="no locality weights"):
        export_locality(manager.registry, deep.manager.root_files, "deep", Path("x"), None)
