"""Stretches of a device's time, from a collected timeline."""

from __future__ import annotations

from collections.abc import Sequence

from hmi.execution import trace

Spans = list[tuple[float, float]]


def device_spans(collected: trace.Trace, name: str) -> Spans:
    """The device's spans, begin and end in microseconds, whose names begin with the word `name`."""
    events = collected.events()
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    return [
        (e["ts"], e["ts"] + e["dur"])
        for e in events
        if e["ph"] == "X" and tracks[e["tid"]].startswith("device ") and e["name"].startswith(f"{name} ")
    ]


def united(spans: Sequence[tuple[float, float]]) -> Spans:
    """The same time, in order and without overlaps."""
    out: Spans = []
    for begin, end in sorted(spans):
        if out and begin <= out[-1][1]:
            out[-1] = out[-1][0], max(end, out[-1][1])
        else:
            out.append((begin, end))
    return out


def covered(spans: Spans) -> float:
    """The time that at least one span takes."""
    return sum(end - begin for begin, end in united(spans))


def overlap(a: Spans, b: Spans) -> float:
    """The time that spans of both take."""
    return covered(a) + covered(b) - covered([*a, *b])
