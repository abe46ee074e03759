from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from plot_store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "plots", create=True) as opened:
        yield opened
