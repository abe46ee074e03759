"""`bench nodes` on real servers: a primary, replicas, and a new primary."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.cases.nodes import parts
from bench.cases.nodes.run import QUICK, run
from bench.harness.home import Contents
from tests.bench.lab import tiny_plan


@pytest.mark.slow
def test_the_quick_run_measures_everything_and_loses_nothing(tmp_path: Path) -> None:
    tiny = tiny_plan(tmp_path)
    contents = Contents(2, tiny.corpus, tiny.source, tiny.learn)
    reports: list[str] = []
    rows = {row.id: row for row in run(replace(QUICK, contents=contents), None, None, reports.append)}
    assert len(reports) == 9
    for name in ("at_once_lost", "infer_1_failed", "infer_16_failed", "take_over_reads_failed"):
        assert rows[name].value == 0, name
    measured = ("change_journal", "join_bytes", "cold_first", "live_worst", "upload_through", "take_over")
    assert all((rows[name].value or 0) > 0 for name in measured)


@pytest.mark.slow
def test_builds_in_parts_are_measured_and_equal(tmp_path: Path) -> None:
    tiny = tiny_plan(tmp_path)
    contents = Contents(1, tiny.corpus, tiny.source, tiny.learn)
    rows = {row.id: row for row in parts.run(replace(parts.QUICK, contents=contents), None, None, print)}
    assert rows["parts_differ"].value == 0
    assert all((rows[f"parts_{arm}"].value or 0) > 0 for arm in parts.ARMS)
