"""A tiny plan of `bench serve`, and its home."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.cases.serve.plan import QUICK, ServePlan
from bench.harness.home import Home, build
from tests.tiny import random_texts, write_tiny_source


def tiny_plan(folder: Path, **changes: Any) -> ServePlan:
    """The quick plan with these changes, on a tiny root that learns its locality from a tiny corpus."""
    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join(random_texts(300, seed=3, low=8)))
    source = str(write_tiny_source(folder / "source"))
    return replace(QUICK, seconds=0.05, corpus=corpus, source=source, learn=True, **changes)


def tiny_home(plan: ServePlan) -> Home:
    """The home of a `tiny_plan`, made beside its corpus."""
    assert plan.corpus is not None
    return build(plan, plan.corpus.parent / "data" / "bench-serve")
