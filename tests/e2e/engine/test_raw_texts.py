"""Raw texts through the engine: entities of a tagging model, and texts that a model does not know."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hmi.core import JobRecord, ModelId
from hmi.engine import Engine, TextRequest, TextResult
from hmi.engine.admit.bundles import Bundles
from hmi.engine.run.novelty import note_similarity
from hmi.engine.run.retrieval import retrieve
from hmi.engine.texts.item import Item, Piece
from hmi.engine.texts.sink import CallSink
from hmi.jobs.stage.profile_tokens import Answering
from hmi.model.tenant.answer import AGGREGATIONS
from hmi.model.tenant.novelty import OwnTexts
from hmi.model.tenant.novelty_threshold import threshold_of
from hmi.training.fit.features import features_of, plot_rows
from hmi.training.fit.novelty import LENGTHS
from tests.e2e.conftest import Home, tag_rows
from tests.tiny import random_texts

TAGS, MOOD, HALF = (ModelId.parse(n) for n in ("raw.tags", "acme.mood", "globex.mood"))
LEARN = {"epochs": 8, "lr": 0.02, "max_length": 16, "module": {"kind": "lora", "rank": 4}, "ramps": False}
ODD = (
    "a\u0301\u200d\u0301 \U0001f468\u200d\U0001f469 gene\u2028cell \u6771\u4eac \ufeff \x07 "
    "'gene' cell-gene\r\n\tcell."
)


@pytest.fixture(scope="module")
def tagger(home: Home) -> JobRecord:
    """A tagging model that has learnt its rows, and reads windows of 16 tokens."""
    home.manager.create_tenant("raw")
    rows = tag_rows(3, 150)
    job = home.manager.create_model(str(TAGS), domain="tiny/full", task="tagging", data=rows, options=LEARN)
    return home.run(job)


@pytest.fixture
async def engine(home: Home, tagger: JobRecord) -> AsyncIterator[Engine]:
    engine = home.engine()
    await engine.start()
    yield engine
    await engine.stop()


async def one(engine: Engine, text: Any, model: ModelId = TAGS, **more: Any) -> TextResult:
    (result,) = await engine.infer([TextRequest(model, text, **more)])
    return result


async def test_a_raw_text_has_the_entities_of_its_words(home: Home, engine: Engine) -> None:
    text = next(text for text in home.covered if "gene" in text.split() or "cell" in text.split())
    raw, given = await one(engine, text), await one(engine, text.split())
    assert (raw.tags, raw.tag_scores, given.entities) == (None, None, None)
    assert raw.entities is not None
    assert given.tags is not None
    assert [e.text for e in raw.entities] == [
        word for word, tag in zip(text.split(), given.tags, strict=True) if tag != "O"
    ]
    assert raw.entities, "there is something to find"
    assert {e.label for e in raw.entities} == {"bio"}


async def test_places_are_those_of_the_callers_characters(engine: Engine) -> None:
    rng = random.Random(5)
    parts = [*ODD.split(" "), "gene", "cell", "\u00a0", "x" * 300, "\u0301"]
    texts = [ODD, "\x07", *(" ".join(rng.choices(parts, k=rng.randint(1, 40))) for _ in range(60))]
    asked = [(text, rng.choice(AGGREGATIONS)) for text in texts if text.strip()]
    results = await engine.infer([TextRequest(TAGS, text, aggregation=by) for text, by in asked])
    found = 0
    for (text, _), result in zip(asked, results, strict=True):
        assert result.entities is not None
        assert all(e.text == text[e.start : e.end] and e.text for e in result.entities)
        assert all(0.0 <= e.score <= 1.0 for e in result.entities)
        found += len(result.entities)
    assert found > 20


async def test_an_entity_far_beyond_the_first_window_is_found(home: Home, engine: Engine) -> None:
    plain = [w for w in " ".join(home.covered).split() if w not in ("cell", "gene")][:50]
    text = " ".join([*plain, "gene"])
    result = await one(engine, text)
    assert not result.truncated
    assert result.entities is not None
    assert (result.entities[-1].start, result.entities[-1].end) == (len(text) - 4, len(text))


async def test_calibrated_entities_have_scores_of_their_own(home: Home, engine: Engine) -> None:
    plain, warm = await one(engine, ODD), await one(engine, ODD, calibrated=True)
    assert plain.entities is not None
    assert warm.entities is not None
    assert [replace(e, score=0.0) for e in warm.entities] == [replace(e, score=0.0) for e in plain.entities]


async def test_own_texts_are_known_and_others_are_not(home: Home, engine: Engine) -> None:
    version = home.manager.registry.model(MOOD).live
    assert version.known
    limit = threshold_of(version.known, 0.97)
    assert version.metrics["known"]["threshold"] == pytest.approx(limit, abs=1e-4)
    own = [f"{text} good" for text in random_texts(60, seed=21)]
    foreign = ["?! ?! ?! ?!", "7 7 7 7 7 7 7", "zzzz zzzz"]
    answers = await engine.infer([TextRequest(MOOD, text) for text in [*own, *foreign]])
    known = [answer.known for answer in answers]
    assert None not in known
    assert sum(map(bool, known[:60])) > 45
    assert known[60:] == [False] * 3
    assert all(answer.label and answer.score for answer in answers), "label and score stay"


async def test_short_texts_of_its_kind_are_known(home: Home, engine: Engine) -> None:
    """The rows have some ten words each. A text of two of them is no foreign one."""
    short = [" ".join(f"{text} good".split()[-2:]) for text in random_texts(120, seed=23)]
    answers = await engine.infer([TextRequest(MOOD, text) for text in short])
    assert np.mean([answer.known is False for answer in answers]) <= 0.05


@pytest.mark.parametrize("earlier", [False, True])
async def test_a_version_of_an_earlier_release_is_compared_as_it_was(home: Home, earlier: bool) -> None:
    """It keeps means of rows with their bias alone; a new one is compared without the bias."""
    manager = home.manager
    bundles = Bundles(home.settings.data, manager.registry, manager.plots, manager.adapters, manager.lowers)
    version = manager.registry.model(MOOD).live
    part = bundles.load_task_part(version.artefact)
    own = part.own_texts
    assert own is not None
    assert own.others is not None
    size = 2 * own.means.size + 4 * own.means.shape[1] + 12 * len(LENGTHS)
    assert version.metrics["known"]["bytes"] <= size
    if earlier:
        own = OwnTexts(own.means)
    answering = Answering(bundles, MOOD, version, replace(part, own_texts=own))
    bundle = replace(answering.bundle, known_share=0.97)
    windows = bundle.root.tokenizer.encode(home.covered[:6], version.max_length)
    asked = zip(home.covered, windows, CallSink(6).sinks, strict=False)
    items = [Item(TextRequest(MOOD, text), bundle, [window], sink) for text, window, sink in asked]
    batch = retrieve([Piece(item, 0) for item in items])
    note_similarity(batch, [answering.part] * len(batch.pieces))
    rows = plot_rows(bundle.reader, windows)
    if earlier:
        rows = features_of(bundle.root, bundle.reader, windows)
    vectors = np.stack([each.numpy().mean(0) for each in rows])
    wanted = own.similarities(vectors, [len(window) for window in windows])
    assert [item.partial.similarities[0] for item in items] == pytest.approx(wanted.tolist(), abs=1e-4)


async def test_no_way_through_the_engine_changes_what_is_known(home: Home, engine: Engine) -> None:
    """Alone, together with other models' texts, insisting on the full model, and computed exactly."""
    texts = [*home.covered[:8], "zzzz zzzz", "?! ?! ?!"]
    alone = [(await one(engine, text, MOOD)).known for text in texts]
    mixed = [TextRequest(model, text) for text in texts for model in (HALF, MOOD, TAGS)]
    together = [r.known for r in await engine.infer(mixed) if r.model == MOOD]
    full = [(await one(engine, text, MOOD, early=False)).known for text in texts]
    exact = [(await one(engine, text, MOOD, exact=True)).known for text in texts]
    assert alone == together == full
    assert None not in exact


async def test_the_tenant_sets_the_share_or_switches_it_off(home: Home, engine: Engine) -> None:
    manager = home.manager

    def set_share(share: float | None) -> None:
        manager.set_objective("acme.mood", dict, {"known_share": share})

    texts = [TextRequest(MOOD, f"{text} good") for text in random_texts(60, seed=22)]
    try:
        counts = {}
        for share in (0.999, 0.5):
            set_share(share)
            counts[share] = sum(r.known is True for r in await engine.infer(texts))
        assert counts[0.5] < counts[0.999]
        set_share(None)
        assert {r.known for r in await engine.infer(texts)} == {None}
    finally:
        set_share(0.97)
