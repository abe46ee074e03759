"""docs/plot-store.md: its examples run, in order, and its table of errors is correct."""

from __future__ import annotations

import re
from pathlib import Path

import plotlab as lab
import pytest

import plot_store
from plot_store import PlotStoreError

TEXT = (lab.ROOT / "docs" / "plot-store.md").read_text(encoding="utf-8")


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert len(blocks) > 5
    names: dict[str, object] = {}
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"docs/plot-store.md, block {number}", "exec"), names)


def test_every_error_is_listed_with_its_kind() -> None:
    table = TEXT[TEXT.index("## Errors") :]
    for name in plot_store.__all__:
        thing = getattr(plot_store, name)
        if isinstance(thing, type) and issubclass(thing, PlotStoreError) and thing is not PlotStoreError:
            assert f"`{name}`" in table
            assert f"`{thing.kind}`" in table
