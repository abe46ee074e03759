"""Parts of the background job `improve`: its budget, and the texts of its pool."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hmi.jobs.improving.ledger import TEACHERS_SHARE, Ledger
from hmi.model.root import Root
from hmi.training.data.rows import Row
from hmi.training.improving import COPIES, PoolPlan, make_pool, plan_of


def context(folder: Path) -> Any:
    """The part of a job's context that a ledger needs: a folder, and a place for its watch."""
    return SimpleNamespace(folder=folder, watch=None)


def test_a_killed_attempt_leaves_the_next_one_what_is_left_of_the_share(tmp_path: Path) -> None:
    begun = Ledger(context(tmp_path), 1_000)
    with begun.share(1):
        path = tmp_path / "improve.json"
        kept = json.loads(path.read_text())
        assert kept["share_ends"] == pytest.approx(TEACHERS_SHARE * 1_000, abs=1)
        path.write_text(json.dumps({**kept, "cpu_s": 500.0}))  # it took 500 seconds, and was killed
        resumed = Ledger(context(tmp_path), 1_000)
        with resumed.share(1):
            assert resumed.share_left_s == pytest.approx(TEACHERS_SHARE * 1_000 - 500, abs=1)
        assert resumed.share_left_s == math.inf
        with resumed.share(1):
            assert resumed.share_left_s == pytest.approx(TEACHERS_SHARE * 500, abs=1), "another training"


def test_texts_beyond_the_limit_are_drawn_by_chance(tiny_root: Root) -> None:
    texts = [Row(f"text number {i}", "") for i in range(300)]
    words = tiny_root.tokenizer, torch.zeros(1, 1)
    pool = make_pool([], [], texts, lambda most: [], words, PoolPlan(0, 0, given=30), 0)
    numbers = [int(str(row.text).split()[-1]) for row in pool.texts]
    assert len(set(numbers)) == 30
    assert max(numbers) >= 150, "a file may be sorted"


def test_a_tenant_may_want_more_copies_of_its_rows() -> None:
    assert plan_of(2_000).copies == plan_of(2_000, 1).copies == COPIES
    assert plan_of(2_000, 10).copies == 10
    assert plan_of(100, 3).copies > COPIES, "few rows have more"
