"""Lexical features end to end: spelling that the tokenizer drops is learnt, kept on
update, and left out on request."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from hmi.core import JobRecord, ModelId, ModelVersion
from hmi.engine import TextRequest
from tests.e2e.conftest import QUICK, Home, jsonl
from tests.tiny import random_texts

MODEL = ModelId("lexical", "cased")
OPTIONS: dict[str, Any] = {**QUICK, "epochs": 5, "batch": 4}


def cased_rows(seed: int, count: int = 400) -> bytes:
    """Words are entities where they are in capitals, which an uncased tokenizer does not see."""
    rng = random.Random(seed)
    rows: list[dict[str, object]] = []
    for text in random_texts(count, seed):
        words = [w.upper() if rng.random() < 0.3 else w for w in text.split()]
        rows.append({"tokens": words, "tags": ["B-x" if w.isupper() and w.isalpha() else "O" for w in words]})
    return jsonl(rows)


def made(home: Home, count: int = 400, **options: object) -> JobRecord:
    create, data = home.manager.create_model, cased_rows(1, count)
    chosen = {**OPTIONS, **options}
    return home.run(create(str(MODEL), domain="tiny/full", task="tagging", data=data, options=chosen))


@pytest.fixture(autouse=True)
def tenant(home: Home) -> Any:
    home.manager.create_tenant("lexical")
    yield
    home.manager.delete_tenant("lexical")


def f1(job: JobRecord) -> float:
    assert job.result is not None
    return float(job.result["metrics"]["entity_f1"])


async def test_lexical_features_learn_case_and_alone_equals_batched(home: Home) -> None:
    assert f1(made(home)) > 0.9
    rows = [json.loads(line)["tokens"] for line in cased_rows(2, 20).decode().splitlines()]
    engine = home.engine()
    await engine.start()
    together = await engine.infer([TextRequest(MODEL, row) for row in rows])
    right = total = 0
    for row, batched in zip(rows, together, strict=True):
        (alone,) = await engine.infer([TextRequest(MODEL, row)])
        assert alone.tags == batched.tags
        assert alone.tag_scores == pytest.approx(batched.tag_scores, abs=1e-5)
        right += sum(
            (tag == "B-x") == (w.isupper() and w.isalpha())
            for w, tag in zip(row, batched.tags or [], strict=True)
        )
        total += len(row)
    await engine.stop()
    assert right / total > 0.9


def test_without_lexical_features_case_cannot_be_learnt(home: Home) -> None:
    assert f1(made(home, lexical=False)) < 0.6


def test_an_update_keeps_the_choice_unless_told_another(home: Home) -> None:
    made(home, count=60, epochs=1, max_length=32)

    def live() -> ModelVersion:
        return home.manager.registry.model(MODEL).live

    def update(**options: object) -> None:
        chosen = {"epochs": 1, **options}
        home.run(
            home.manager.update_model(str(MODEL), data=cased_rows(3, 40), options=chosen, publish="always")
        )

    update()
    assert (live().lexical, live().max_length) == (True, 32)
    update(lexical=False)
    assert not live().lexical
    update()
    assert not live().lexical


def test_an_export_says_what_stays_behind(home: Home) -> None:
    made(home, count=60, epochs=1, module={"kind": "parallel", "rank": 4})
    left_out = [what.partition(":")[0] for what in home.manager.export_module(str(MODEL)).left_out]
    assert left_out == ["lexical features", "which tag follows which", "ramps"]
