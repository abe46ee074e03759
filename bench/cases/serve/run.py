"""Runs the sections of `bench serve` on one home."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, cast

import torch

from bench.cases.serve.home import Home, build
from bench.cases.serve.plan import SECTIONS, Plan, Report, checked
from bench.harness.report import Row


def steps(plan: Plan) -> int:
    """Return how many times `run` calls its `report`. Raises InvalidInput for an unknown section."""
    return 1 + sum(_module(section).steps(plan) for section in checked(plan.sections))


def run(plan: Plan, data: Path | None, report: Report) -> Iterator[Row]:
    """Measure the plan's sections, in the order of SECTIONS.

    data: a folder that keeps the home for later runs; None: a temporary one. Raises InvalidInput,
    StorageFull.
    """
    checked(plan.sections)
    torch.set_num_threads(1)
    if data is not None:
        yield from _measured(plan, data / "bench-serve", report)
        return
    with tempfile.TemporaryDirectory(prefix="hmi-bench-serve-") as folder:
        yield from _measured(plan, Path(folder), report)


def _measured(plan: Plan, folder: Path, report: Report) -> Iterator[Row]:
    report(f"a data folder with {plan.tenants} tenants")
    home = build(plan, folder)
    yield from _about(home)
    if plan.plots is not None:
        plan.plots.mkdir(parents=True, exist_ok=True)
    for section in SECTIONS:
        if section in plan.sections:
            yield from _module(section).measure(plan, home, report)


def _about(home: Home) -> Iterator[Row]:
    yield Row("tenants", home.tenants, "tenants", peer=f"text: {home.text_source}")


class Section(Protocol):
    """The module of a section."""

    def steps(self, plan: Plan) -> int: ...
    def measure(self, plan: Plan, home: Home, report: Report) -> Iterator[Row]: ...


def _module(section: str) -> Section:
    return cast(Section, importlib.import_module(SECTIONS[section]))
