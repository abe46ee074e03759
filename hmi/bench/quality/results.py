"""What the runs have shown, written for reading: a table, JSON and a plot."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

from hmi.bench.quality.run import Plan
from hmi.bench.quality.tables import OWN, Table, markdown
from hmi.bench.report import result
from hmi.model.files import write_bytes

ROW, BAR, LEFT, WIDE = 22, 14, 150, 520
LEAST = 0.5
"""Where the plot's axis begins: ratios below are drawn at its edge."""
COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#8c564b", "#7f7f7f")


def write(folder: Path, found: Table, plan: Plan, name: str = "quality") -> None:
    """`quality.json`, `quality.md` and, once a dedicated model is among them, `quality.svg` in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = {**result(name, []), "plan": _plan(plan), "table": as_json(found)}
    write_bytes(folder / f"{name}.json", (json.dumps(whole, indent=1) + "\n").encode())
    write_bytes(folder / f"{name}.md", markdown(found).encode())
    if any(found.mean_ratio(arm) is not None for arm in found.arms if arm != OWN):
        write_bytes(folder / f"{name}.svg", ratios_svg(found).encode())


def as_json(found: Table) -> dict[str, Any]:
    """Scores and ratios by task and column."""
    return {
        "scores": {task: {arm: vars(s) for arm, s in cells.items()} for task, cells in found.scores.items()},
        "ratio": {t: {a: found.ratio(t, a) for a in found.arms} for t in found.tasks},
        "mean_ratio": {arm: found.mean_ratio(arm) for arm in found.arms},
    }


def ratios_svg(found: Table) -> str:
    """For each task a bar a column, as long as its share of a dedicated model's score; the line is a dedicated one."""
    arms = [arm for arm in found.arms if arm != OWN and found.mean_ratio(arm) is not None]
    tasks = [task for task in found.tasks if any(found.ratio(task, arm) is not None for arm in arms)]
    height = 60 + len(tasks) * (len(arms) * BAR + ROW - BAR)
    parts, y = [_legend(arms)], 50
    for task in tasks:
        parts.append(f'<text x="{LEFT - 8}" y="{y + BAR * len(arms) / 2 + 4}" text-anchor="end">{escape(task)}</text>')
        for i, arm in enumerate(arms):
            ratio = found.ratio(task, arm)
            if ratio is not None:
                parts.append(_bar(y + i * BAR, ratio, COLOURS[i % len(COLOURS)]))
        y += len(arms) * BAR + ROW - BAR
    one = _x(1.0)
    parts.append(f'<line x1="{one}" y1="40" x2="{one}" y2="{height - 10}" stroke="black" stroke-dasharray="4"/>')
    width = LEFT + WIDE + 60
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">'
        f'<rect width="{width}" height="{height}" fill="white"/>' + "\n".join(parts) + "</svg>\n"
    )


def _legend(arms: list[str]) -> str:
    parts = [f'<text x="{LEFT}" y="14">share of a dedicated model\'s score (dashed: all of it)</text>']
    x = LEFT
    for i, arm in enumerate(arms):
        parts.append(f'<rect x="{x}" y="22" width="10" height="10" fill="{COLOURS[i % len(COLOURS)]}"/>')
        parts.append(f'<text x="{x + 14}" y="31">{escape(arm)}</text>')
        x += 26 + 7 * len(arm)
    return "".join(parts)


def _bar(y: float, ratio: float, colour: str) -> str:
    width = max(1.0, _x(ratio) - LEFT)
    return (
        f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR - 3}" fill="{colour}"/>'
        f'<text x="{LEFT + width + 4:.1f}" y="{y + 10}" font-size="10">{ratio:.3f}</text>'
    )


def _x(ratio: float) -> float:
    """0.5 at the left edge, 1.1 at the right one."""
    return round(LEFT + WIDE * (min(ratio, 1.1) - LEAST) / 0.6, 1)


def _plan(plan: Plan) -> dict[str, Any]:
    return {
        "seeds": plan.budget.seeds, "rows": plan.rows, "plot": plan.plot,
        "modules": [module.model_dump(exclude_none=True) for module in plan.modules],
    }  # fmt: skip
