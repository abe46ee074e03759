"""A build that is interrupted anywhere and resumed publishes the same as an uninterrupted one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hmi.jobs.plot import write_plot
from hmi.manager import Manager
from plot_store import Store
from tests.hmi.labs.build_lab import attempt, text, tiny_manager


@pytest.fixture(scope="module")
def manager(tiny_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    yield from tiny_manager(tiny_source, tmp_path_factory.mktemp("resume") / "data")


def test_an_interrupted_build_ends_like_any_other(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_plot, "BATCH", 16)
    kwdefaults = Store.writer.__kwdefaults__
    assert kwdefaults is not None
    monkeypatch.setitem(kwdefaults, "segment_bytes", 1 << 14)  # about 80 rows
    corpus = text(7, 150)
    whole = manager.create_domain("tiny/whole", corpus, alpha=70)
    assert attempt(manager, whole)
    job, attempts = manager.create_domain("tiny/parts", corpus, alpha=70), 1
    while attempt(manager, job, calls=8 + 4 * attempts) is None:
        attempts += 1
    assert attempts > 3
    wanted, made = manager.plots.version("tiny/whole"), manager.plots.version("tiny/parts")
    assert made.meta["report"] == wanted.meta["report"]
    assert sum(s.kind == "rows" for s in made.segments) > 3
    with manager.plots.reader(wanted.id) as one, manager.plots.reader(made.id) as other:
        for order in (2, 3):
            ngrams = one.ngrams(order)
            assert np.array_equal(ngrams, other.ngrams(order))
            assert made.meta["report"]["stored_trigrams" if order == 3 else "stored_bigrams"] == len(ngrams)
            np.testing.assert_allclose(one.get(order, ngrams)[0], other.get(order, ngrams)[0], atol=0.02)
    rows = sum(s.count for s in made.segments if s.kind == "rows")
    assert rows == made.entries[2] + made.entries[3], "nothing was written twice"
