"""Data folders, registries, managers and tokenizers for the tests of hmi's parts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from hmi.config import Settings
from hmi.manager import Manager
from hmi.model.text.tokenizer import Tokenizer
from hmi.stores.records.registry import Registry
from tests.hmi.labs.registry_lab import add_tenant
from tests.hmi.labs.runner_lab import Lab
from tests.tiny import write_tiny_mpnet


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    """A registry with the tenant acme, in a map so small that it soon has to grow."""
    opened = Registry.open(tmp_path / "registry", first_map=1 << 17)
    add_tenant(opened, "acme")
    yield opened
    opened.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    """A manager on an empty data folder, which runs no jobs."""
    opened = Manager(Settings(data=tmp_path / "data", job_workers=0))
    yield opened
    opened.close()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A data folder to run real jobs in."""
    opened = Lab(tmp_path / "data")
    yield opened
    for runner in opened.runners:
        runner.stop()
    opened.registry.close()


@pytest.fixture
def writing_data(written_folder: Path, tmp_path: Path) -> Path:
    """A copy of `written_folder`."""
    shutil.copytree(written_folder, tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture(scope="module", params=["bert", "mpnet"])
def tokenizer(
    request: pytest.FixtureRequest, tiny_source: Path, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    """The tokenizer of a tiny source of each architecture."""
    mpnet = request.param == "mpnet"
    folder = write_tiny_mpnet(tmp_path_factory.mktemp("mpnet") / "m") if mpnet else tiny_source
    return Tokenizer(folder / "tokenizer.json")
