"""Runs the sections of `bench stages` on one data folder."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, cast

import torch

from bench.cases.stages.home import Home, build
from bench.cases.stages.plan import SECTIONS, Plan, Report, checked
from bench.harness.report import Row


def texts(plan: Plan) -> int:
    """Return about how many texts `run` asks. Raises InvalidInput for an unknown section."""
    return sum(_module(section).texts(plan) for section in checked(plan.sections))


def run(plan: Plan, data: Path, report: Report) -> Iterator[Row]:
    """Measure the plan's sections, in the order of SECTIONS.

    data: the data folder, which receives what it lacks of roots, domains and models. Raises InvalidInput,
    Conflict if a server runs on it, HmiError if a job fails.
    """
    checked(plan.sections)
    torch.set_num_threads(1)
    home = build(plan, data, report)
    if plan.plots is not None:
        plan.plots.mkdir(parents=True, exist_ok=True)
    for section in SECTIONS:
        if section in plan.sections:
            yield from _module(section).measure(plan, home, report)


class Section(Protocol):
    """The module of a section."""

    def texts(self, plan: Plan) -> int: ...
    def measure(self, plan: Plan, home: Home, report: Report) -> Iterator[Row]: ...


def _module(section: str) -> Section:
    return cast(Section, importlib.import_module(SECTIONS[section]))
