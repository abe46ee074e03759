"""Runs the sections of `bench serve` on one home."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from bench.cases.serve.plan import SECTIONS, Report, ServePlan
from bench.harness.home import build
from bench.harness.report import Figure, known


def steps(plan: ServePlan) -> int:
    """Return how many times `run` calls its `report`. Raises InvalidInput for an unknown section."""
    counts: list[int] = [_module(section).steps(plan) for section in known(plan.sections, SECTIONS)]
    return 1 + sum(counts)


def run(plan: ServePlan, data: Path | None, report: Report) -> Iterator[Figure]:
    """Measure the plan's sections, in the order of SECTIONS.

    data: a folder that keeps the home for later runs; None: a temporary one. Raises InvalidInput,
    StorageFull.
    """
    known(plan.sections, SECTIONS)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="hmi-bench-serve-") as folder:
        report(f"a data folder with {plan.tenants} tenants")
        kept = Path(folder) if data is None else data / "bench-serve"
        home = build(plan, kept)
        yield Figure("tenants", home.tenants, "tenants", peer=f"text: {home.text_source}")
        for section in (name for name in SECTIONS if name in plan.sections):
            yield from _module(section).measure(plan, home, report)


def _module(section: str) -> Any:
    return importlib.import_module(f"bench.cases.serve.{section}")
