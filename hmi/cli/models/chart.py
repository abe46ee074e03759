"""A reliability plot as SVG: for each probability p, the share of answers given with p that were right."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

SIDE, EDGE = 320, 50


def reliability_svg(title: str, calibration: Mapping[str, Any]) -> str:
    """Return the plot of a version's metrics["calibration"].

    A dot's area grows with its share of the answers. On the diagonal the probabilities are exact.
    """
    bins = calibration["bins"]
    total = sum(b["rows"] for b in bins)
    size = SIDE + 2 * EDGE
    points = [(_x(b["confidence"]), _y(b["right"]), b) for b in bins]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
    dots = [
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{3 + 14 * (b["rows"] / total) ** 0.5:.1f}" fill="#1f77b4" '
        f'fill-opacity="0.6"><title>{b["rows"]} answers: {b["confidence"]:.2f} given, {b["right"]:.2f} '
        "right</title>"
        "</circle>"
        for x, y, b in points
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size} {size}" width="{size}" '
            f'height="{size}" '
            'font-family="sans-serif" font-size="12">',
            f'<rect width="{size}" height="{size}" fill="white"/>',
            f'<text x="{EDGE}" y="20" font-size="14">{escape(title)}</text>',
            f'<text x="{EDGE}" y="38">expected calibration error {calibration["ece"]:.3f}, {total} '
            "answers</text>",
            *(_grid(tick / 5) for tick in range(6)),
            f'<line x1="{_x(0)}" y1="{_y(0)}" x2="{_x(1)}" y2="{_y(1)}" stroke="#999" stroke-dasharray="4"/>',
            f'<polyline points="{line}" fill="none" stroke="#1f77b4"/>',
            *dots,
            f'<text x="{size / 2}" y="{size - 8}" text-anchor="middle">probability given</text>',
            f'<text transform="translate(14 {size / 2}) rotate(-90)" text-anchor="middle">share right</text>',
            "</svg>\n",
        ]
    )


def _grid(at: float) -> str:
    """Return a grid line and a label for each axis at the probability `at`."""
    x, y = _x(at), _y(at)
    return (
        f'<path d="M{x} {_y(0)}V{_y(1)}M{_x(0)} {y}H{_x(1)}" stroke="#ddd"/>'
        f'<text x="{x}" y="{_y(0) + 16}" text-anchor="middle">{at:.1f}</text>'
        f'<text x="{_x(0) - 6}" y="{y + 4}" text-anchor="end">{at:.1f}</text>'
    )


def _x(share: float) -> float:
    return round(EDGE + SIDE * share, 1)


def _y(share: float) -> float:
    return round(EDGE + SIDE * (1 - share), 1)
