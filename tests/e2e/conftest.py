"""One data folder for all end-to-end tests: a root, a fully and a half covered
branch, models of several tasks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from torch import Tensor

from hmi.config import Settings
from hmi.core import JobRecord, ModelId
from hmi.engine import Engine
from hmi.engine.admit.bundles import Bundles
from hmi.manager import Manager
from hmi.metrics import Metrics
from hmi.stages.planner import Planner
from tests.tiny import random_texts

if TYPE_CHECKING:
    from tests.e2e.protocols.protocol_lab import ProtocolServer

QUICK = {"epochs": 3, "lr": 0.01, "module": {"kind": "lora", "rank": 4}}
CORPUS = random_texts(250, seed=5)
ROOT_TEXT, ROOT_OPTIONS = "\n".join(random_texts(300, seed=1)).encode(), {"steps": 10, "upper_steps": 5}


@dataclass
class Home:
    """A data folder, its manager, and texts that the branch `tiny/full` covers fully."""

    manager: Manager
    settings: Settings
    covered: list[str]

    def bundles(self) -> Bundles:
        m = self.manager
        return Bundles(self.settings.data, m.registry, m.plots, m.adapters, m.lowers)

    def engine(
        self, metrics: Metrics | None = None, planner: Planner | None = None, **settings: Any
    ) -> Engine:
        changed = replace(self.settings, **settings)
        return Engine(self.bundles(), changed, Metrics() if metrics is None else metrics, None, planner)

    @staticmethod
    def model(name: str) -> ModelId:
        return ModelId.parse(name)

    def state(self, name: str) -> dict[str, Tensor]:
        """The live version's tensors."""
        return self.manager.adapters.get(self.manager.registry.model(self.model(name)).live.artefact)

    def run(self, job: JobRecord) -> JobRecord:
        done = self.manager.runner.run_one(job.job, lambda progress: None)
        assert done.state == "succeeded", done.error
        return done


def jsonl(rows: list[dict[str, object]]) -> bytes:
    return "".join(json.dumps(r) + "\n" for r in rows).encode()


def mood_rows(seed: int, count: int = 80) -> bytes:
    return jsonl(
        [
            {"text": t + (" good" if i % 2 else " bad"), "label": "pos" if i % 2 else "neg"}
            for i, t in enumerate(random_texts(count, seed))
        ]
    )


def pair_rows(seed: int, count: int = 80) -> bytes:
    texts = random_texts(count, seed)
    return jsonl(
        [
            {"text": t, "text_pair": t if i % 2 else texts[i - 1], "label": "same" if i % 2 else "other"}
            for i, t in enumerate(texts)
        ]
    )


def tag_rows(seed: int, count: int = 80) -> bytes:
    return jsonl(
        [
            {"tokens": t.split(), "tags": ["B-bio" if w in ("cell", "gene") else "O" for w in t.split()]}
            for t in random_texts(count, seed)
        ]
    )


@pytest.fixture(scope="session")
def home(tiny_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    settings = Settings(data=tmp_path_factory.mktemp("home") / "data", improve=False)
    manager = Manager(settings)
    home = Home(manager, settings, CORPUS[:30])
    home.run(
        manager.import_root("tiny", str(tiny_source), texts={"text-0.txt": ROOT_TEXT}, options=ROOT_OPTIONS)
    )
    corpus = "\n".join(CORPUS).encode()
    home.run(manager.create_domain("tiny/full", corpus, alpha=100))
    home.run(manager.create_domain("tiny/half", corpus, alpha=50))
    for tenant in ("acme", "globex"):
        manager.create_tenant(tenant)
    create: Callable[..., JobRecord] = manager.create_model
    home.run(create("acme.mood", domain="tiny/full", task="classification", data=mood_rows(7), options=QUICK))
    home.run(create("acme.pairs", domain="tiny", task="pair", data=pair_rows(7), options=QUICK))
    home.run(create("globex.tags", domain="tiny/full", task="tagging", data=tag_rows(7), options=QUICK))
    adapters = {**QUICK, "module": {"kind": "parallel", "rank": 6}, "ramps": False}
    home.run(
        create("globex.mood", domain="tiny/half", task="classification", data=mood_rows(8), options=adapters)
    )
    yield home
    manager.close()


@pytest.fixture(scope="session")
def pair(home: Home, tiny_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """See `levels_lab.two_roots`."""
    from tests.e2e.stages.levels_lab import two_roots  # which imports this file

    yield from two_roots(home, tiny_source, tmp_path_factory.mktemp("levels") / "data")


@pytest.fixture(scope="session")
def protocol_server(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProtocolServer]:
    """See `protocol_lab.ProtocolServer`."""
    from tests.e2e.protocols.protocol_lab import protocol_server_on  # which imports this file

    with protocol_server_on(home, tmp_path_factory.mktemp("protocols") / "data") as server:
        yield server


@pytest.fixture(scope="session")
def writing_server(
    written_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProtocolServer]:
    """See `protocol_lab.writing_server_on`."""
    from tests.e2e.protocols.protocol_lab import writing_server_on  # which imports this file

    data = shutil.copytree(written_folder, tmp_path_factory.mktemp("writing") / "data")
    with writing_server_on(Path(data)) as server:
        yield server


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """See `levels_lab.few`."""
    from tests.e2e.stages.levels_lab import few

    few(monkeypatch)
