"""The background job that tries what makes a published version better."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from hmi.manager import Manager
from tests.hmi.api_world import LABELS, rows
from tests.hmi.build_lab import tiny_manager
from tests.hmi.improve_lab import ended, folder, made, model, queued


@pytest.fixture(scope="module")
def manager(tiny_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    for opened in tiny_manager(tiny_source, tmp_path_factory.mktemp("improve") / "data"):
        opened.create_tenant("acme")
        yield opened


def test_a_better_version_is_published(manager: Manager) -> None:
    first = made(manager, "acme.better")
    job = queued(manager, "acme.better")
    assert (first["improving"], job.kind, job.state) == (job.job, "improve", "queued")
    result = ended(manager, job)
    record = model(manager, "acme.better")
    print(json.dumps(result, indent=1))
    assert (record.current, result["version"]) == (2, 2)
    assert result["gain"] > 0
