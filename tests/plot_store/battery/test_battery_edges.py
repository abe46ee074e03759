"""Rare cases: a lost segment, a growing map, a base that only a build holds, dead readers, too many
mappings, a version that is needed again while it is collected.

sabotage.py says which of them also find planted bugs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import plain
import plotlab as lab
import pytest
import sabotage
from nursery import Nurseries, Outcome


def run(nurseries: Nurseries, job: str, bug: str = "") -> Outcome:
    given: dict[str, Any] = {"bug": bug} if bug else {}
    with lab.scratch() as folder:
        place = (
            {"refs": [ref for ref in plain.REFS if "/" not in ref]} if job == "lost" else {"folder": folder}
        )
        return nurseries.run(job, patience=300, **place, **given)


@pytest.mark.parametrize("job", ["lost", "growing", "ground", "dead", "mappings", "raced"])
def test_edges(nurseries: Nurseries, job: str, tell: Callable[[str], None]) -> None:
    answer = run(nurseries, job).result
    tell(f"edges, {job}: {answer['tried']:,} tried, {len(answer['found'])} violations")
    assert not answer["found"], "\n".join(answer["found"][:20])
    assert answer["tried"]


@pytest.mark.parametrize("bug", list(sabotage.EDGES))
def test_a_planted_bug_is_caught(nurseries: Nurseries, bug: str, tell: Callable[[str], None]) -> None:
    outcome = run(nurseries, sabotage.EDGES[bug][1], bug)
    found = [outcome.trouble.strip().rpartition("\n")[2]] if outcome.trouble else outcome.result["found"]
    tell(f"planted bug, {bug}: {len(found)} violations of {sabotage.EDGES[bug][1]}, such as {found[:1]}")
    assert found
