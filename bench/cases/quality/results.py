"""Writes the results of the runs: a table, JSON and plots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.cases.quality.plots import lines_svg, ratios_svg
from bench.cases.quality.run import QualityPlan, title
from bench.cases.quality.runs import RunFile
from bench.cases.quality.tables import OWN, ScoreTable, markdown
from bench.cases.quality.tenants import by_number, columns_of
from bench.harness.report import result
from hmi.model.files import write_bytes, write_json
from hmi.training.plans.defaults import default_module

NUMBERS = (10, 30, 100, 300, 500, 1_000, 3_000, 10_000)


def write(folder: Path, found: ScoreTable, plan: QualityPlan) -> None:
    """Write `quality.json`, `quality.md` and, if a dedicated copy was run, `quality.svg` to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    about = {
        "seeds": plan.seeds,
        "rows": plan.rows,
        "plot": plan.plot,
        "modules": [title(module) for module in plan.modules]
        or {"pairs": title(default_module(paired=True)), "other tasks": title(default_module(paired=False))},
    }
    write_json(folder / "quality.json", {**result("quality", []), "plan": about, "table": as_json(found)})
    write_bytes(folder / "quality.md", markdown(found).encode())
    if any(found.mean_ratio(arm) is not None for arm in found.arms if arm != OWN):
        write_bytes(folder / "quality.svg", ratios_svg(found).encode())


def write_tenants(folder: Path, runs: Path) -> dict[str, Any]:
    """Write `tenants.json` and `tenants.svg` from the runs of all columns.

    They hold scores by number of tenants and CPU seconds of one tenant.
    """
    folder.mkdir(parents=True, exist_ok=True)
    columns = columns_of(RunFile(runs).all())
    most = 1 + max((tenant for found in columns.values() for tenant in found), default=0)
    numbers = [n for n in NUMBERS if n <= most]
    lines = {name: line for name, found in columns.items() if (line := by_number(found, numbers))}
    rows = []
    for name, of_tenants in columns.items():
        spent = sorted(r["cpu_s"] for r in of_tenants.values())
        scores = {str(n): round(value, 2) for n, value in lines.get(name, {}).items()}
        slow = spent[int(0.9 * (len(spent) - 1))]
        rows.append(
            {"arm": name, "tenants": len(spent), **scores, "cpu_s": spent[len(spent) // 2], "cpu_s_p90": slow}
        )
    found = {**result("tenants", []), "rows": rows}
    write_json(folder / "tenants.json", found)
    if lines:
        title = "mean test score of the first n tenants"
        write_bytes(folder / "tenants.svg", lines_svg(title, lines).encode())
    return found


def as_json(found: ScoreTable) -> dict[str, Any]:
    """Return scores and ratios by task and column."""
    return {
        "scores": {task: {arm: vars(s) for arm, s in cells.items()} for task, cells in found.scores.items()},
        "ratio": {t: {a: found.ratio(t, a) for a in found.arms} for t in found.tasks},
        "mean_ratio": {arm: found.mean_ratio(arm) for arm in found.arms},
    }
