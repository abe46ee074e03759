"""A build that was interrupted anywhere publishes what an uninterrupted one does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmi.config import Settings
from hmi.core import JobRecord
from hmi.jobs import build_plot, import_root, plots
from hmi.jobs.runtime.context import JobContext, JobStopped
from hmi.manager import Manager
from plot_store import Store
from tests.tiny import random_texts


def text(seed: int, count: int) -> bytes:
    return "\n".join(random_texts(count, seed)).encode()


@pytest.fixture(scope="module")
def manager(tiny_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    opened = Manager(Settings(data=tmp_path_factory.mktemp("resume") / "data", job_workers=0))
    few = {"steps": 2, "upper_steps": 1}
    job = opened.import_root("tiny", str(tiny_source), texts={"text-0": text(1, 280)}, alpha=30, options=few)
    import_root.run(context(opened, job))
    end(opened, job)
    yield opened
    opened.close()


def context(manager: Manager, job: JobRecord) -> JobContext:
    return JobContext(job, manager.settings, manager.registry)


def end(manager: Manager, job: JobRecord) -> None:
    manager.registry.update_job(job.job, lambda r: r.model_copy(update={"state": "succeeded"}))


def attempt(manager: Manager, job: JobRecord, calls: int) -> bool:
    """One process' work: it is stopped at the given call of `progress`. Whether it came to its end."""
    ctx, left = context(manager, job), calls
    told = ctx.progress

    def progress(*given: Any, **more: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise JobStopped
        told(*given, **more)

    ctx.progress = progress  # type: ignore[method-assign]
    try:
        build_plot.run(ctx)
    except JobStopped:
        return False
    finally:
        ctx.close()
    return True


def test_an_interrupted_build_ends_like_any_other(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "BATCH", 16)
    kwdefaults = Store.writer.__kwdefaults__
    assert kwdefaults is not None
    monkeypatch.setitem(kwdefaults, "segment_bytes", 1 << 14)  # about 80 rows
    corpus = text(7, 150)
    whole = manager.create_domain("tiny/whole", corpus, alpha=70)
    assert attempt(manager, whole, 10_000)
    end(manager, whole)
    job, attempts = manager.create_domain("tiny/parts", corpus, alpha=70), 1
    while not attempt(manager, job, 8 + 4 * attempts):
        attempts += 1
    end(manager, job)
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
