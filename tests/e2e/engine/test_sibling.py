"""A model that starts from another model of its tenant knows from the beginning what that one has learnt."""

from __future__ import annotations

from typing import Any

import pytest

from hmi.core import JobRecord
from hmi.errors import InvalidInput, NotFound
from tests.e2e.conftest import QUICK, Home, mood_rows, pair_rows

STILL: dict[str, Any] = {"epochs": 1, "lr": 1e-7}
"""Hardly any training: what such a model knows, it knew from the start."""


def create(home: Home, name: str, options: dict[str, Any], **more: Any) -> JobRecord:
    given = {
        "domain": "tiny/full",
        "task": "classification",
        "data": mood_rows(21),
        "dev": mood_rows(24),
        **more,
    }
    return home.manager.create_model(name, options=options, **given)


def accuracy(job: JobRecord) -> float:
    assert job.result is not None
    return float(job.result["metrics"]["accuracy"])


def test_a_model_starts_with_module_and_head_of_its_sibling(home: Home) -> None:
    taught = {**QUICK, "epochs": 12}
    home.run(create(home, "acme.teacher", taught, data=mood_rows(20, 200)))
    from_nothing = accuracy(home.run(create(home, "acme.fresh", {**STILL, "module": QUICK["module"]})))
    started = home.run(create(home, "acme.second", {**STILL, "start": "acme.teacher"}))
    assert accuracy(started) > 0.9 > from_nothing
    version = home.manager.registry.model(home.model("acme.second")).live
    assert version.module == home.manager.registry.model(home.model("acme.teacher")).live.module


def test_a_model_of_another_task_starts_with_the_siblings_module(home: Home) -> None:
    home.run(
        create(
            home,
            "acme.third",
            {**STILL, "start": "acme.mood"},
            task="pair",
            data=pair_rows(22),
            dev=pair_rows(25),
        )
    )
    module = {k: v for k, v in home.state("acme.third").items() if k.startswith("module.")}
    before = home.state("acme.mood")
    assert module
    assert all(abs(v.float() - before[k].float()).max() < 1e-3 for k, v in module.items())


@pytest.mark.parametrize(
    ("name", "options", "error", "says"),
    [
        ("acme.bad", {"start": "globex.mood"}, InvalidInput, "another tenant"),
        ("acme.bad", {"start": "acme.none"}, NotFound, "acme.none"),
        ("acme.bad", {"start": "none"}, InvalidInput, "tenant.model"),
    ],
)
def test_what_cannot_be_a_start_is_refused(
    home: Home, name: str, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        create(home, name, options)


def test_another_module_is_refused_and_an_update_has_no_start(home: Home) -> None:
    with pytest.raises(InvalidInput, match="another module"):
        create(home, "acme.fourth", {**STILL, "start": "acme.mood", "module": {"kind": "lora", "rank": 2}})
    with pytest.raises(InvalidInput, match="leave start out"):
        home.manager.update_model("acme.mood", data=mood_rows(23), options={"start": "acme.fresh"})
