from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import plotlab as lab
import pytest

from plot_store import Store


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory where there is one: hundreds of syncs are free there, and no test here cuts the
    power."""
    with lab.scratch() as folder:
        yield folder


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "plots", create=True) as opened:
        yield opened
