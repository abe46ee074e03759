from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import plotlab as lab
import pytest

from plot_store import Store
from tests.bucket import credentials

sys.path.append(str(Path(__file__).parents[1] / "kernels"))
from cuda_twin import device, library

__all__ = ["device", "library", "other", "store", "tmp_path", "url"]


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory where the machine has one. Syncs are free there, and no test here cuts the power."""
    with lab.scratch() as folder:
        yield folder


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "plots", create=True) as opened:
        yield opened


PLACES = ("folder", "memory", "s3")


@pytest.fixture(params=PLACES)
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = uuid.uuid4().hex
    if request.param == "folder":
        return str(tmp_path / "remote")
    if request.param == "memory":
        pytest.importorskip("fsspec", reason="fsspec is not installed (pip install 'hmi-server[backup]')")
        return f"memory://{name}/deep"
    for variable, value in credentials(request.getfixturevalue("bucket")).items():
        monkeypatch.setenv(variable, value)
    return f"s3://plots/{name}/deep"


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "other", create=True) as opened:
        yield opened
