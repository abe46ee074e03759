"""Two roots with models of one tenant, and cascades of them that are planted."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hmi.core import Cascade, ModelId, Offer
from hmi.engine import Engine, TextRequest, TextResult
from hmi.engine.adaptive import levels
from hmi.manager import Manager
from hmi.metrics import Metrics
from hmi.model.tenant.artefact import Artefact
from hmi.stages.cascade import watched as watching
from hmi.stages.cascade.gate import Terms
from hmi.stages.cascade.watched import CascadeEvidence
from hmi.stages.draw import draw
from hmi.stages.early_exit.account import Phase
from hmi.stages.early_exit.evidence import Alarm
from tests.e2e.conftest import QUICK, ROOT_OPTIONS, ROOT_TEXT, Home, mood_rows
from tests.tiny import random_texts

LARGE, SMALL, TWIN, WRONG = "acme.large", "acme.mood", "acme.twin", "acme.wrong"
SHARE = 0.5
TERMS = Terms(loss=0.3, phases=(Phase(SHARE, 1.0),))
"""Few texts suffice, so that tests are short."""
PLAIN = {**QUICK, "ramps": False}
CLOSE = 1e-5
TEXTS = [f"{text} {'good' if i % 2 else 'bad'}" for i, text in enumerate(random_texts(60, seed=70))]


def two_roots(home: Home, tiny_source: Path, data: Path) -> Iterator[Home]:
    """A copy of the data folder with a second root of three upper layers, and a model on each root."""
    shutil.copytree(home.settings.data, data)
    settings = replace(home.settings, data=data)
    manager = Manager(settings)
    two = Home(manager, settings, home.covered)
    two.run(
        manager.import_root(
            "tall", str(tiny_source), split=1, texts={"text-0.txt": ROOT_TEXT}, options=ROOT_OPTIONS
        )
    )
    two.run(
        manager.create_model(LARGE, domain="tall", task="classification", data=mood_rows(17), options=PLAIN)
    )
    copies(two)
    yield two
    manager.close()


def copies(pair: Home) -> None:
    """Publish a twin of the large level, and a copy that always gives the other label."""
    m, live = pair.manager, pair.manager.registry.model(ModelId.parse(LARGE)).live
    found = Artefact.split(m.adapters.get(live.artefact))
    other = replace(found, head={k: -v if "out" in k else v for k, v in found.head.items()})
    name, size = m.adapters.put(other.joined(), {})
    for model, artefact in ((TWIN, live.artefact), (WRONG, name)):
        of = {"artefact": artefact, "bytes": size, "version": 0, "job": f"j{model.partition('.')[2]}"}
        m.registry.publish_model(ModelId.parse(model), live.model_copy(update=of))


def change(pair: Home, **fields: Any) -> None:
    pair.manager.registry.change_model(ModelId.parse(LARGE), lambda r: r.model_copy(update=fields))


def cascade_of(pair: Home, small: str = SMALL, **offer: float) -> Cascade:
    """A cascade of one dispatcher, without a profile."""
    record, first = (pair.manager.registry.model(ModelId.parse(name)) for name in (LARGE, small))
    given = {"cut_off": 0.5, "slope": 4.0, "weight": 1.0, **offer}
    return Cascade(
        small=small,
        version=record.live.version,
        small_version=first.live.version,
        small_artefact=first.live.artefact,
        temperature=0.3,
        large_temperature=1.5,
        rows=400,
        large_accuracy=1.0,
        large_ms=2.0,
        offers=(Offer(**given, accuracy=1.0, agreement=1.0, mean_ms=1.0, returned=0.5),),
    )


def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let few texts suffice."""

    class Few(Terms):
        @classmethod
        def of(cls, agreement: float) -> Terms:
            return TERMS

    monkeypatch.setattr(watching, "Terms", Few)


@asynccontextmanager
async def running(pair: Home, metrics: Metrics | None = None) -> AsyncIterator[Engine]:
    shutil.rmtree(pair.settings.data / "cascades", ignore_errors=True)  # an earlier engine's evidence
    engine = pair.engine(metrics)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def ask(ids: Sequence[int], model: str = LARGE, **options: Any) -> list[TextRequest]:
    given = {"scores": True, "provenance": True, **options}
    return [TextRequest(ModelId.parse(model), TEXTS[i % len(TEXTS)], id=f"r{i}", **given) for i in ids]


def said(result: TextResult) -> tuple[Any, ...]:
    return result.label, result.score, result.scores


def same(one: TextResult, other: TextResult) -> bool:
    """Return True if two answers are equal, apart from rounding that depends on the batch."""
    close = pytest.approx(other.scores, abs=CLOSE)
    return one.label == other.label and one.scores is not None and one.scores == close


def watched(engine: Engine, model: str = LARGE) -> CascadeEvidence:
    (profile,) = (p for of, p in engine._levels._evidence._profiles.items() if str(of[0]) == model)
    return next(reversed(profile.found.values()))


def open_gate(engine: Engine, model: str = LARGE, *, for_good: bool = False) -> None:
    """Let the gate open by audits that agree, and the stream be long enough. for_good: without an alarm."""
    trial = watched(engine, model).trial
    for _ in range(400):
        trial.record(trial.begin(audited=True), [False])
    assert trial.open
    assert trial.solvent
    if for_good:
        trial.alarm = Alarm(TERMS.loss, run_length=10**300)


def audited(i: int) -> bool:
    return draw("audit", f"r{i}") < SHARE


def in_order(monkeypatch: pytest.MonkeyPatch, texts: Iterable[int]) -> None:
    """Let the texts that come to a cascade, by their numbers, be audited by their ids."""
    coming = iter(texts)
    monkeypatch.setattr(levels, "draw", lambda purpose, nonce: draw(purpose, f"r{next(coming)}"))
