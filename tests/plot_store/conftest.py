from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import plotlab as lab
import pytest

from plot_store import Store

sys.path.append(str(Path(__file__).parents[1] / "kernels"))
from cuda_twin import device, library

__all__ = ["device", "library", "store", "tmp_path"]


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory where the machine has one. Syncs are free there, and no test here cuts the power."""
    with lab.scratch() as folder:
        yield folder


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "plots", create=True) as opened:
        yield opened
