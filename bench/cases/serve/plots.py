"""SVG plots of `bench serve`: lines over two linear axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from bench.cases.quality.plots import COLOURS

WIDE, TALL, LEFT, TOP, BELOW = 560, 280, 70, 50, 50
TICKS = 5
Line = Sequence[tuple[float, float]]
"""Points by ascending x."""


def xy_svg(title: str, x_name: str, y_name: str, lines: Mapping[str, Line]) -> str:
    """Return a plot with a line for each name. Both axes begin at the least value and are linear."""
    points = [point for line in lines.values() for point in line]
    (x0, x1), (y0, y1) = (_range([p[axis] for p in points]) for axis in (0, 1))

    def at(x: float, y: float) -> tuple[float, float]:
        return round(LEFT + WIDE * (x - x0) / (x1 - x0), 1), round(TOP + TALL * (y1 - y) / (y1 - y0), 1)

    parts = [f'<text x="{LEFT}" y="16" font-size="14">{escape(title)}</text>']
    for tick in range(TICKS + 1):
        x, y = x0 + (x1 - x0) * tick / TICKS, y0 + (y1 - y0) * tick / TICKS
        (across, bottom), (left, up) = at(x, y0), at(x0, y)
        parts += [
            f'<path d="M{across} {TOP}V{bottom}M{left} {up}H{LEFT + WIDE}" stroke="#ddd"/>',
            f'<text x="{across}" y="{bottom + 16}" text-anchor="middle">{x:.4g}</text>',
            f'<text x="{left - 6}" y="{up + 4}" text-anchor="end">{y:.4g}</text>',
        ]
    for i, (name, line) in enumerate(lines.items()):
        colour, joined = COLOURS[i % len(COLOURS)], " ".join("{},{}".format(*at(*p)) for p in line)
        parts.append(f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(f'<text x="{LEFT + 150 * i}" y="36" fill="{colour}">{escape(name)}</text>')
    low = TOP + TALL + BELOW
    parts.append(f'<text x="{LEFT + WIDE / 2}" y="{low - 12}" text-anchor="middle">{escape(x_name)}</text>')
    turned = f"translate(14 {TOP + TALL / 2}) rotate(-90)"
    parts.append(f'<text transform="{turned}" text-anchor="middle">{escape(y_name)}</text>')
    wide = LEFT + WIDE + 30
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {low}" width="{wide}" height="{low}" '
        'font-family="sans-serif" font-size="12">'
        f'<rect width="{wide}" height="{low}" fill="white"/>' + "\n".join(parts) + "</svg>\n"
    )


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)
