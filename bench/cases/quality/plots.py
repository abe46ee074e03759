"""SVG plots of the quality runs: bars by task, lines by number of tenants."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape

from bench.cases.quality.tables import OWN, ScoreTable

ROW, BAR, LEFT, WIDE = 22, 14, 150, 520
LEAST = 0.5
"""The ratio at which the axis begins. Smaller ratios are drawn at its edge."""
COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#17becf", "#bcbd22", "#7f7f7f")


def ratios_svg(found: ScoreTable) -> str:
    """Return a plot with a bar for each task and column: its score divided by a dedicated copy's.

    A dashed line marks the dedicated copy.
    """
    arms = [arm for arm in found.arms if arm != OWN and found.mean_ratio(arm) is not None]
    tasks = [task for task in found.tasks if any(found.ratio(task, arm) is not None for arm in arms)]
    names, y = _names(arms)
    parts = [_text(LEFT, 14, "share of a dedicated model's score (dashed: all of it)"), names]
    one, top = _x(1.0), y - 10
    for task in tasks:
        parts.append(_text(LEFT - 8, y + BAR * len(arms) / 2 + 4, task, ' text-anchor="end"'))
        for i, arm in enumerate(arms):
            ratio = found.ratio(task, arm)
            if ratio is not None:
                parts.append(_bar(y + i * BAR, ratio, COLOURS[i % len(COLOURS)]))
        y += len(arms) * BAR + ROW - BAR
    parts.append(f'<line x1="{one}" y1="{top}" x2="{one}" y2="{y}" stroke="black" stroke-dasharray="4"/>')
    return _svg(parts, y + 10)


def lines_svg(title: str, lines: Mapping[str, Mapping[int, float]]) -> str:
    """Return a plot with a line for each column: scores (0 to 100) by number of tenants.

    The axis of the number is logarithmic.
    """
    numbers = sorted({n for line in lines.values() for n in line})
    values = [value for line in lines.values() for value in line.values()]
    low, high, tall = min(values) - 2, max(values) + 2, 260
    first, last = math.log(numbers[0]), math.log(max(numbers[-1], numbers[0] + 1))

    def at(n: int, value: float) -> tuple[float, float]:
        across = LEFT + WIDE * (math.log(n) - first) / (last - first)
        return round(across, 1), round(50 + tall * (high - value) / (high - low), 1)

    parts = [_text(LEFT, 14, title), _names(list(lines))[0]]
    parts += [_text(at(n, low)[0], 70 + tall, str(n), ' text-anchor="middle"') for n in numbers]
    for i, line in enumerate(lines.values()):
        points = [at(n, value) for n, value in sorted(line.items())]
        colour = COLOURS[i % len(COLOURS)]
        joined = " ".join(f"{x},{y}" for x, y in points)
        parts.append(f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for (x, y), (_, value) in zip(points, sorted(line.items()), strict=True):
            parts.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>')
            parts.append(_text(x + 5, y - 5, f"{value:.1f}", ' font-size="10"'))
    return _svg(parts, 90 + tall)


def _svg(parts: list[str], height: float) -> str:
    width = LEFT + WIDE + 60
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" '
        'font-family="sans-serif" font-size="12">'
        f'<rect width="{width}" height="{height}" fill="white"/>' + "\n".join(parts) + "</svg>\n"
    )


def _names(arms: list[str]) -> tuple[str, int]:
    """Return a legend of the columns, and the y coordinate below it."""
    parts, x, y = [], LEFT, 22
    for i, arm in enumerate(arms):
        wide = 26 + 7 * len(arm)
        if x + wide > LEFT + WIDE + 60 and x > LEFT:
            x, y = LEFT, y + 16
        parts.append(f'<rect x="{x}" y="{y}" width="10" height="10" fill="{COLOURS[i % len(COLOURS)]}"/>')
        parts.append(_text(x + 14, y + 9, arm))
        x += wide
    return "".join(parts), y + 28


def _bar(y: float, ratio: float, colour: str) -> str:
    width = max(1.0, _x(ratio) - LEFT)
    bar = f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR - 3}" fill="{colour}"/>'
    return bar + _text(LEFT + 4, y + 10, f"{ratio:.3f}", ' font-size="10" fill="white"')


def _text(x: float, y: float, says: str, style: str = "") -> str:
    return f'<text x="{x}" y="{y}"{style}>{escape(says, quote=False)}</text>'


def _x(ratio: float) -> float:
    """Return the x coordinate of a ratio: 0.5 at the left edge, 1.1 at the right one."""
    return round(LEFT + WIDE * (min(ratio, 1.1) - LEAST) / 0.6, 1)
