"""Parts of the background job `improve`: its budget, and the texts of its pool."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hmi.config import Settings
from hmi.jobs.improving import sources
from hmi.jobs.improving.ledger import TEACHERS_SHARE, Ledger
from hmi.jobs.improving.sources import teacher_bytes
from hmi.jobs.runtime import memory_room
from hmi.model.network.shape import EncoderShape, read_shape
from hmi.model.sources.root import Root
from hmi.model.sources.source import find_shape, find_source
from hmi.training.data.rows import Row
from hmi.training.second.second_version import COPIES, PoolPlan, make_pool, plan_of
from tests.hmi.model.test_decoder import write_language_model
from tests.tiny import write_tiny_mpnet


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


def test_a_job_says_what_it_takes_with_the_larger_teachers_that_could_ever_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real shapes, without their weights: MiniLM's, and a source of twelve layers of 768."""
    small = EncoderShape(30_522, 384, 12, 6, 1_536, 512, 2, 1e-12)
    deep = EncoderShape(30_527, 768, 12, 12, 3_072, 512, 0, 1e-5, "mpnet", 32)
    assert teacher_bytes(small) < 1.5e9
    assert teacher_bytes(small) < teacher_bytes(deep) < 3e9
    monkeypatch.setattr(sources, "present", lambda name, _: {"deep": deep, "gone": None}[name])
    monkeypatch.setattr(memory_room, "usable_memory", lambda: 4 << 30)
    for given, most, larger in (
        ("deep, gone", 0, teacher_bytes(deep)),
        ("deep", 8 << 30, teacher_bytes(deep)),
        ("deep", 2 << 30, 0),
        ("gone", 0, 0),
        ("", 1 << 20, 0),
    ):
        settings = Settings(data=tmp_path, teachers=given, background_bytes=most)
        assert sources.peaks_of(small, settings) == (teacher_bytes(small), larger)
    monkeypatch.setattr(memory_room, "usable_memory", lambda: 2 << 30)
    settings = Settings(data=tmp_path, teachers="deep", background_bytes=8 << 30)
    assert sources.peaks_of(small, settings) == (teacher_bytes(small), 0), "the setting makes no memory"


def test_a_larger_source_that_does_not_fit_does_not_teach(
    tmp_path: Path, tiny_root: Root, tiny_source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "source_of_root", lambda ctx, root, field: find_source(str(tiny_source)))
    other, writes = write_tiny_mpnet(tmp_path / "mpnet"), write_language_model("llama", tmp_path / "llama")
    said = list[str]()
    for most, names in ((1 << 40, [sources.OWN, "mpnet"]), (1 << 20, [sources.OWN])):
        teachers = f"{writes}, {other}, {tmp_path / 'none'}"
        settings = Settings(data=tmp_path, teachers=teachers, background_bytes=most)
        ctx: Any = SimpleNamespace(settings=settings, log=said.append)
        assert [name for name, _ in sources.sources_of(ctx, tiny_root, larger=True)] == names
        assert [name for name, _ in sources.sources_of(ctx, tiny_root, larger=False)] == [sources.OWN]
    assert sum("takes more memory than is left" in line for line in said) == 1
    assert sum("not on this machine" in line for line in said) == 2
    assert sum("llama: it is a language model" in line for line in said) == 2
    assert sources.present(str(other), find_shape) == read_shape(other)
    assert sources.present(str(tmp_path / "none"), find_shape) is None
