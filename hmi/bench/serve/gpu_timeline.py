"""What overlaps on a device: the copies of modules, and the layers that compute meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from hmi.bench.report import Row
from hmi.bench.serve.gpu import FULL, Bench, Pipeline, one_pass
from hmi.execution import trace

Spans = list[tuple[float, float]]
ONE_AT_A_TIME = Pipeline(threads=1)


def timeline(bench: Bench, file: Path | None = None) -> Iterator[Row]:
    """The share of the copies' time in which layers compute, with one batch at a time and with two.

    With one batch the layers are those of the same batch: the modules of layer l + 1 travel while layer l
    computes. With two they are of either. Tenants are more than the slots hold, so that every batch brings
    new modules. file: gets the timeline of two batches, for chrome://tracing or ui.perfetto.dev.
    """
    many = bench.swapped()
    for name, pipeline in (("one", ONE_AT_A_TIME), ("two", FULL)):
        one_pass(bench, many, pipeline)
        with trace.collected() as collected:
            one_pass(bench, many, pipeline)
        copies, layers = device_spans(collected, "module layer"), device_spans(collected, "layer")
        share = overlap(copies, layers) / max(length(copies), 1e-12)
        yield Row(f"gpu_copies_under_layers_of_{name}", round(share, 3), "of their time")
        yield Row(f"gpu_copies_s_over_layers_s_of_{name}", round(length(copies) / length(layers), 3), "x")
    if file is not None:
        collected.write(file)


def device_spans(collected: trace.Trace, name: str) -> Spans:
    """The device's spans, begin and end in microseconds, whose names begin with `name` and a number."""
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


def length(spans: Spans) -> float:
    """The time that at least one span takes."""
    return sum(end - begin for begin, end in united(spans))


def overlap(a: Spans, b: Spans) -> float:
    """The time that spans of both take."""
    return length(a) + length(b) - length([*a, *b])
