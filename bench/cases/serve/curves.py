"""SVG plots of curves on logarithmic axes: response times by load, and their distributions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

from bench.cases.quality.plots import COLOURS

LEFT, TOP, WIDE, TALL = 70, 60, 520, 300
Points = Sequence[tuple[float, float]]
Scale = Callable[[float], float]
"""From a value to a pixel."""


def times_svg(title: str, lines: Mapping[str, Points]) -> str:
    """Return a plot of milliseconds by a number: points (number, ms), both axes logarithmic."""
    across = _Axis([x for points in lines.values() for x, _ in points], LEFT, LEFT + WIDE)
    up = _Axis([y for points in lines.values() for _, y in points], TOP + TALL, TOP)
    parts = [*_frame(title, list(lines)), *_ticks_across(across), *_ticks_up(up)]
    return _svg([*parts, *_lines(lines, across.at, up.at)])


def shares_svg(title: str, samples: Mapping[str, Sequence[float]]) -> str:
    """Return the cumulative distributions of milliseconds; the axis of the times is logarithmic."""
    across = _Axis([ms for some in samples.values() for ms in some], LEFT, LEFT + WIDE)
    lines = {name: _steps(some) for name, some in samples.items()}
    parts = [*_frame(title, list(samples)), *_ticks_across(across)]
    for percent in (0, 25, 50, 75, 100):
        y = TOP + TALL * (1 - percent / 100)
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{percent}%</text>')
    return _svg([*parts, *_lines(lines, across.at, lambda share: TOP + TALL * (1 - share))])


class _Axis:
    """A logarithmic axis from the pixel `first` to the pixel `last`."""

    def __init__(self, values: Sequence[float], first: float, last: float) -> None:
        positive = [v for v in values if v > 0]
        self.low = math.floor(math.log10(min(positive)))
        self.high = max(math.ceil(math.log10(max(positive))), self.low + 1)
        self._first, self._last = first, last

    def at(self, value: float) -> float:
        share = (math.log10(max(value, 10.0**self.low)) - self.low) / (self.high - self.low)
        return self._first + (self._last - self._first) * share

    def ticks(self) -> list[float]:
        return [10.0**power for power in range(self.low, self.high + 1)]


def _steps(samples: Sequence[float], points: int = 400) -> list[tuple[float, float]]:
    """Return (ms, share of the samples up to it), thinned to about `points`."""
    ordered = sorted(samples)
    last = len(ordered) - 1
    at = sorted({round(i * last / points) for i in range(points + 1)})
    return [(ordered[i], (i + 1) / len(ordered)) for i in at]


def _frame(title: str, names: list[str]) -> list[str]:
    parts = [f'<text x="{LEFT}" y="16">{escape(title)}</text>']
    parts.append(f'<rect x="{LEFT}" y="{TOP}" width="{WIDE}" height="{TALL}" fill="none" stroke="grey"/>')
    for i, name in enumerate(names):
        x, y = LEFT + 260 * (i % 2), 32 + 14 * (i // 2)
        parts.append(f'<rect x="{x}" y="{y - 9}" width="9" height="9" fill="{COLOURS[i % len(COLOURS)]}"/>')
        parts.append(f'<text x="{x + 13}" y="{y}" font-size="11">{escape(name)}</text>')
    return parts


def _ticks_across(axis: _Axis) -> list[str]:
    y = TOP + TALL
    return [
        f'<text x="{axis.at(v):.1f}" y="{y + 16}" text-anchor="middle">{v:g}</text>' for v in axis.ticks()
    ]


def _ticks_up(axis: _Axis) -> list[str]:
    return [
        f'<text x="{LEFT - 6}" y="{axis.at(v) + 4:.1f}" text-anchor="end">{v:g} ms</text>'
        for v in axis.ticks()
    ]


def _lines(lines: Mapping[str, Points], across: Scale, up: Scale) -> list[str]:
    parts = []
    for i, points in enumerate(lines.values()):
        joined = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in points)
        colour = COLOURS[i % len(COLOURS)]
        parts.append(f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="2"/>')
    return parts


def _svg(parts: list[str]) -> str:
    width, height = LEFT + WIDE + 40, TOP + TALL + 30
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" font-size="12">'
        f'<rect width="{width}" height="{height}" fill="white"/>' + "\n".join(parts) + "</svg>\n"
    )
