"""One real server process for the tests of all protocols: two tenants with keys, and a model of each task
that the protocols answer in different forms."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.harness.server import free_port
from hmi.config import Settings
from hmi.core import ModelId, ModelVersion, TaskRules
from hmi.manager import Manager
from hmi.model.tenant.artefact import Artefact
from tests.e2e.conftest import Home
from tests.hmi.labs.server_lab import ready, serving
from tests.tiny import DIM

MOOD, PAIRS, TAGS, EMBED, OTHERS = "acme.mood", "acme.pairs", "acme.tags", "acme.embed", "globex.mood"
"""acme's models of the tasks classification, pair, tagging and embedding, and a model of another tenant.
Version 2 of acme.mood answers, and version 1 exists. The others have version 1."""


@dataclass(frozen=True)
class ProtocolServer:
    """A running server, and keys for it. It answers no request without a key."""

    url: str
    grpc: str
    """Host and port of gRPC."""
    key: str
    """acme's, with the scopes infer and manage."""
    infer_key: str
    """acme's, with the scope infer alone."""
    other_key: str
    """globex's."""
    admin_key: str
    pid: int
    data: Path

    @property
    def address(self) -> str:
        """Host and port."""
        return self.url.removeprefix("http://")

    def native(self, model: str, inputs: Any, **parameters: Any) -> Any:
        """The answer of POST /infer/{model}, by which the other protocols are judged."""
        return self.post(f"/infer/{model}", {"inputs": inputs, "parameters": parameters})

    def written(self, model: str, **body: Any) -> Any:
        """The answer of POST /generate/{model}, by which the other protocols are judged."""
        return self.post(f"/generate/{model}", body)

    def post(self, path: str, body: Any) -> Any:
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)


@contextmanager
def protocol_server_on(home: Home, data: Path) -> Iterator[ProtocolServer]:
    """Run a server on a copy of the end-to-end tests' data folder, with more models and keys."""
    shutil.copytree(home.settings.data, data)
    manager = Manager(replace(home.settings, data=data))
    try:
        _more_models(manager)
        _, admin = manager.create_key(None, ("admin",))
        keys = [
            manager.create_key("acme")[1],
            manager.create_key("acme", ("infer",))[1],
            manager.create_key("globex")[1],
        ]
    finally:
        manager.close()
    port = free_port()
    with serving(data, "--grpc-port", str(port)) as (url, process):
        ready(url)
        yield ProtocolServer(url, f"127.0.0.1:{port}", *keys, admin, process.pid, data)


@contextmanager
def writing_server_on(data: Path) -> Iterator[ProtocolServer]:
    """Run a server on a copy of `written_folder`, and make keys."""
    manager = Manager(Settings(data=data, job_workers=0))
    try:
        keys = [
            manager.create_key("acme")[1],
            manager.create_key("acme", ("infer",))[1],
            manager.create_key("beta")[1],
            manager.create_key(None, ("admin",))[1],
        ]
    finally:
        manager.close()
    with serving(data, "--precision", "fp32") as (url, process):
        ready(url)
        yield ProtocolServer(url, "", *keys, process.pid, data)


def _more_models(manager: Manager) -> None:
    """Publish versions that need no training: copies of existing ones, and an embedding."""

    def live(model: str) -> ModelVersion:
        return manager.model(model).live

    # Other tests may have published further versions in the folder that was copied.
    manager.registry.change_model(
        ModelId.parse(MOOD), lambda m: m.model_copy(update={"versions": m.versions[:1], "current": 1})
    )
    untrained, size = manager.adapters.put(Artefact().joined(), {"task": "embedding"})
    embedding = {
        "task": "embedding",
        "labels": (),
        "rules": TaskRules(),
        "module": None,
        "lexical": False,
        "ramps": (),
        "temperature": None,
        "metrics": {"dim": DIM},
        "artefact": untrained,
        "bytes": size,
    }
    for model, version, changed in (
        (MOOD, live(MOOD), {}),
        (TAGS, live("globex.tags"), _finding(manager, live("globex.tags"))),
        (EMBED, live(MOOD), embedding),
    ):
        update = {"version": 0, "job": f"published-{model.partition('.')[2]}", **changed}
        manager.registry.publish_model(ModelId.parse(model), version.model_copy(update=update))


def _finding(manager: Manager, version: ModelVersion) -> dict[str, Any]:
    """The artefact of a tagging version whose head favours an entity's tag: the tiny one would find none."""
    tensors = manager.adapters.get(version.artefact)
    tensors["head.out.bias"][version.labels.index("B-bio")] += 8
    artefact, size = manager.adapters.put(tensors, {"task": "tagging"})
    return {"artefact": artefact, "bytes": size}
