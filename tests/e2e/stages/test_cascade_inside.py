"""A cascade inside one root in the engine: closed it changes nothing; open, texts leave and lose words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from hmi.core import Cascade, ModelId, Objective, Offer
from hmi.engine import TextRequest
from hmi.engine.admit.bundles import TaskPart
from hmi.engine.run.heads import outputs_of
from hmi.engine.texts.item import Item
from hmi.engine.texts.request import TextResult
from hmi.execution import Left
from hmi.jobs.stage.profile_inside import profiled, seen_by
from hmi.model.tasks import task_of
from hmi.model.tenant.heads import Head, pool_rows
from hmi.model.tenant.modules import TenantModule
from hmi.stages.cascade.ensemble import calibrated
from hmi.stages.cascade.stage import CascadeInside
from hmi.stages.cascade.standing import VersionEvidence
from hmi.training.data.rows import Row
from tests.e2e.conftest import Home, mood_rows
from tests.e2e.engine.hall import bundle_of
from tests.e2e.engine.test_stage import Always
from tests.hmi.stages.test_cascade_inside import used as opened

MOOD, PAIRS = ModelId("acme", "inside-mood"), ModelId("acme", "inside-pairs")
OBJECTIVE = Objective(agreement=0.9)
OFFER = Offer(
    cut_off=0.2, slope=5.0, weight=0.6, pruning=0.8, accuracy=0.9, agreement=0.99, mean_ms=1.0, returned=0.5
)


@pytest.fixture
def inside(home: Home) -> Iterator[Home]:
    """The home with two more models, which have a ramp before the second upper layer, and a cascade."""
    registry, g = home.manager.registry, torch.Generator().manual_seed(3)
    for made, name in ((MOOD, "acme.mood"), (PAIRS, "acme.pairs")):
        live, state = registry.model(home.model(name)).live, home.state(name)
        size = {"classification": 2, "pair": 3}[live.task] * 32
        ramp = {
            "ramps.1.out.weight": torch.randn(2, size, generator=g) * 0.3,
            "ramps.1.out.bias": torch.zeros(2),
        }
        artefact, size_bytes = home.manager.adapters.put({**state, **ramp})
        version = live.model_copy(
            update={"version": 1, "artefact": artefact, "bytes": size_bytes, "ramps": (1,)}
        )
        registry.publish_model(made, version)
        cascade = Cascade(site=1, version=1, rows=100, large_accuracy=0.9, large_ms=2.0, offers=(OFFER,))
        registry.change_model(
            made, lambda r, c=cascade: r.model_copy(update={"objective": OBJECTIVE, "cascade": c})
        )
    yield home
    for made in (MOOD, PAIRS):
        registry.delete_model(made)


def asked(home: Home, **options: bool) -> list[TextRequest]:
    """Texts of models with and without a cascade, in one call."""
    texts = home.covered
    requests = [TextRequest(MOOD, t, id=f"m{i}", scores=True, provenance=True) for i, t in enumerate(texts)]
    pairs = zip(texts[:12], texts[3:15], strict=True)
    requests += [TextRequest(PAIRS, p, id=f"p{i}", scores=True, provenance=True) for i, p in enumerate(pairs)]
    requests += [TextRequest(ModelId("globex", "mood"), t, scores=True, provenance=True) for t in texts[:6]]
    requests += [TextRequest(ModelId("globex", "tags"), t.split(), provenance=True) for t in texts[:4]]
    return [replace(request, **options) for request in requests]


async def answers(
    home: Home, stage: CascadeInside | None, *, alone: bool = False, **options: bool
) -> list[TextResult]:
    engine = home.engine(None, None if stage is None else Always(cast(Any, stage), 1))
    await engine.start()
    requests = asked(home, **options)
    found = [(await engine.infer([r]))[0] for r in requests] if alone else await engine.infer(requests)
    await engine.stop()
    return found


async def test_a_closed_gate_changes_no_answer(inside: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Audited texts run twice, in longer batches, in which torch rounds otherwise."""
    monkeypatch.setattr(Item, "nonce", property(lambda item: item.request.id))  # a known draw
    stage = CascadeInside()
    for one, other in zip(await answers(inside, stage), await answers(inside, None), strict=True):
        assert (one.label, one.tags) == (other.label, other.tags)
        assert one.scores == pytest.approx(other.scores, abs=1e-6)
    artefact = inside.manager.registry.model(MOOD).live.artefact
    report = stage.report(MOOD, artefact, "", OBJECTIVE.agreement)
    assert report is not None
    assert report.state in ("testing", "no offer")
    assert report.texts == len(inside.covered)
    assert 0 < report.audited < len(inside.covered), "a share, since words would be dropped"


def used(home: Home) -> CascadeInside:
    """A stage whose gates are open."""
    stage = CascadeInside()
    for model in (MOOD, PAIRS):
        record = home.manager.registry.model(model)
        assert record.cascade is not None
        opened(VersionEvidence(stage._evidence.of(model, record.live.artefact, record.cascade, OBJECTIVE)))
    return stage


async def test_an_open_gate_answers_some_texts_early_each_as_alone(inside: Home) -> None:
    together, alone = await answers(inside, used(inside)), await answers(inside, used(inside), alone=True)
    plain, early = await answers(inside, None), set[str]()
    for request, one, other, full in zip(asked(inside), together, alone, plain, strict=True):
        assert one.label == other.label
        assert one.provenance is not None
        assert other.provenance is not None
        assert one.provenance.layers == other.provenance.layers
        if request.model not in (MOOD, PAIRS):
            assert (one.label, one.tags) == (full.label, full.tags), "a model without a cascade"
            assert one.scores == pytest.approx(full.scores, abs=1e-6)
            continue
        assert one.scores == pytest.approx(other.scores, abs=1e-5)
        left = one.provenance.layers == 1
        assert left == (one.provenance.confidence is not None)
        early.add(f"{request.model} {left}")
        if not left:
            assert one.scores != pytest.approx(full.scores, abs=1e-5), "the ensemble, of fewer words"
    assert early == {f"{model} {left}" for model in (MOOD, PAIRS) for left in (True, False)}


async def test_calibrated_scores_are_divided_once(inside: Home) -> None:
    """The calibrated scores use each level's temperature. Others are on the scale of the full model's."""
    registry, heat = inside.manager.registry, {"temperature": 0.5, "large_temperature": 2.0}
    for model in (MOOD, PAIRS):
        registry.change_model(
            model,
            lambda r: r.model_copy(
                update={
                    "cascade": r.cascade and r.cascade.model_copy(update=heat),
                    "versions": (r.live.model_copy(update={"temperature": 2.0}),),
                }
            ),
        )
    pairs = [await answers(inside, used(inside), calibrated=wanted) for wanted in (True, False)]
    left = 0
    for one, raw in zip(*pairs, strict=True):
        if one.model not in (MOOD, PAIRS):
            continue
        assert one.label == raw.label
        assert one.scores is not None
        assert raw.scores is not None
        divided = calibrated([*raw.scores.values()], 2.0)
        assert list(one.scores.values()) == pytest.approx(divided.tolist(), abs=1e-5)
        assert one.provenance is not None
        if one.provenance.confidence is not None:
            assert one.score == pytest.approx(one.provenance.confidence, abs=1e-5)
            left += 1
    assert left > 5


async def test_a_profile_of_its_ramps_finds_what_the_engine_would_say(inside: Home) -> None:
    bundle = await bundle_of(inside, MOOD)
    part = inside.bundles().load_task_part(bundle.version.artefact)
    rows = [Row(str(r["text"]), str(r["label"])) for r in map(json.loads, mood_rows(9, 60).splitlines())]
    cascade = profiled(bundle, part, rows)
    assert (cascade.site, cascade.version, cascade.small) == (1, 1, None)
    seen, again = (seen_by(bundle, part, rows, [1], runs=1, prune_at=at, scale=1.0) for at in (None, 1))
    np.testing.assert_array_equal(seen.ramps, again.ramps)
    assert not np.array_equal(seen.full, again.full)
    labels = bundle.version.labels
    right = np.array([labels.index(str(row.label)) for row in rows]) == seen.full.argmax(-1)
    assert cascade.large_accuracy == pytest.approx(right.mean())
    assert 0.0 < seen.alone_s.mean() < 10.0
    engine = inside.engine()
    await engine.start()
    found = await engine.infer([TextRequest(MOOD, row.text, scores=True, early=False) for row in rows])
    await engine.stop()
    for result, chances in zip(found, seen.full, strict=True):
        assert result.scores is not None
        assert [result.scores[label] for label in labels] == pytest.approx(chances.tolist(), abs=1e-5)


def test_a_pair_without_some_tokens_is_pooled_by_the_types_of_those_left() -> None:
    """As the padded form with these tokens masked out."""
    g, types, kept = torch.Generator().manual_seed(4), [0, 0, 0, 0, 1, 1, 1], [0, 2, 3, 5, 6]
    rows, head = torch.randn(2 * len(kept), 8, generator=g), Head(24, 2)
    part = TaskPart(cast(TenantModule, None), head, None, None)
    bundle = SimpleNamespace(task=task_of("pair", ("a", "b")))
    piece: Any = SimpleNamespace(window=SimpleNamespace(types=types), bundle=bundle)
    tokens = torch.tensor(kept * 2)
    left = Left([0, 1], rows, rows, [0, len(kept), 2 * len(kept)], after=2, tokens=tokens)
    got = outputs_of(left, [piece, piece], [part, replace(part)])
    for i, output in enumerate(got):
        full = torch.zeros(1, len(types), 8)
        full[0, kept] = rows[i * len(kept) : (i + 1) * len(kept)]
        mask = torch.zeros(1, len(types), dtype=torch.bool)
        mask[0, kept] = True
        wanted = head(pool_rows("compare", full, full, torch.tensor([types]), mask))[0]
        assert isinstance(output, torch.Tensor)
        torch.testing.assert_close(output, wanted, rtol=1e-5, atol=1e-6)
