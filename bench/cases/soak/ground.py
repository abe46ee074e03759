"""The models of a soak, and the answers that each of their versions must give."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.cases.serve.churn import VARIANTS
from bench.cases.serve.plan import QUICK
from bench.cases.soak.http import Http
from bench.cases.soak.plan import Plan
from bench.harness import home as serve_home
from bench.harness.home import Ground, Model, mixed_spec, publish_at_once, put_model
from hmi.config import Settings
from hmi.manager import Manager

TOLERANCE = 1e-5
"""Largest difference between two scores of one text. A head of several texts may round the last bit in
another way."""
Scores = dict[str, float]


@dataclass
class Standing:
    """The versions of one model that may answer now."""

    may: set[int] = field(default_factory=lambda: {VARIANTS})
    """The versions that may answer. There are several while a change is under way."""
    change: int = 0
    """Counts the changes, so that a call knows whether one came between."""


@dataclass
class Soil:
    """Models with two versions each, and the answers of both."""

    home: serve_home.Home
    texts: list[str]
    right: dict[tuple[int, int, int], Scores] = field(default_factory=dict)
    """Scores by model, version and text."""
    standing: list[Standing] = field(default_factory=list)

    def path(self, model: int) -> str:
        return str(self.home.model(model))

    def key(self, model: int) -> str:
        return self.home.key(model)

    def fault(self, model: int, may: set[int], texts: Sequence[int], answer: dict[str, object]) -> str | None:
        """Return the fault of an answer, or None if it is right. may: the versions that may have answered."""
        version, outputs = answer["version"], answer["outputs"]
        assert isinstance(version, int)
        assert isinstance(outputs, list)
        if answer["model"] != self.path(model) or version not in may or len(outputs) != len(texts):
            return f"{answer['model']} version {version} answered for {self.path(model)}, {sorted(may)}"
        for text, output in zip(texts, outputs, strict=True):
            right = self.right[model, version, text]
            off = max(abs(output["scores"][label] - right[label]) for label in right)
            if off > TOLERANCE:
                return f"{self.path(model)} version {version}, text {text}: off by {off:.2g}"
        return None


def build(plan: Plan, folder: Path) -> serve_home.Home:
    """Make a data folder with a model of two versions for each tenant. Raises StorageFull."""
    home = serve_home.build(replace(QUICK, tenants=plan.tenants), folder)
    manager = Manager(Settings(data=home.data))
    try:
        stores = Ground.of(manager, serve_home.ROOT)
        second = [
            Model(serve_home.tenant_of(i), 1_000_000 + i, mixed_spec(i), VARIANTS)
            for i in range(plan.tenants)
        ]
        publish_at_once(manager, [(model.id, put_model(manager, stores, model)) for model in second])
    finally:
        manager.close()
    return home


async def learn(http: Http, plan: Plan, home: serve_home.Home) -> Soil:
    """Ask every version of every model every text, one at a time, and keep the answers."""
    ground = Soil(home, home.texts().of(None, plan.texts))
    for model in range(plan.tenants):
        ground.standing.append(Standing())
        for version in (1, VARIANTS):
            await http.json("POST", f"/manage/models/{ground.path(model)}/rollback", {"version": version})
            for text in range(plan.texts):
                answer = await http.json(
                    "POST", f"/infer/{ground.path(model)}", asking([ground.texts[text]]), ground.key(model)
                )
                ground.right[model, version, text] = answer["outputs"][0]["scores"]
            await asyncio.sleep(0)
    return ground


def asking(texts: Sequence[str]) -> dict[str, object]:
    return {"inputs": list(texts), "parameters": {"return": ["scores"]}}
