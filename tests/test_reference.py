"""The pages under docs/reference are those that the code generates."""

from __future__ import annotations

from pathlib import Path

import pytest

from hmi.cli.machine.reference import PAGES

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_current(name: str) -> None:
    page = (REFERENCE / f"{name}.md").read_text(encoding="utf-8")
    assert page == PAGES[name](), "run: python -m hmi reference --out docs/reference"


def test_every_row_says_something() -> None:
    for name, page in PAGES.items():
        rows = [line for line in page().splitlines() if line.startswith("| ")]
        assert len(rows) > 5, name
        assert not [row for row in rows if row.rstrip().endswith("|  |")], (
            f"{name}: a row without a description"
        )
