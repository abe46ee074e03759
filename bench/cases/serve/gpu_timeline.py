"""Measures how far copies of modules overlap with layers on a device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bench.cases.serve.gpu_bench import FULL, Bench, Pipeline, one_pass
from bench.cases.serve.gpu_spans import covered, device_spans, overlap
from bench.harness.report import Row
from hmi.execution import trace

ONE_AT_A_TIME = Pipeline(threads=1, ahead=False)


def timeline(bench: Bench, file: Path | None = None) -> Iterator[Row]:
    """The share of the copies' time in which layers compute, with one batch at a time and with two.

    With one batch, whose modules are asked for after its look-up, the layers are those of the same batch: the
    modules of layer l + 1 travel while layer l computes. With two the layers are of either. Tenants are more
    than the slots hold, so that every batch brings new modules. A copy's time includes its enqueuing by the
    host. file: gets the timeline of two batches, for chrome://tracing or ui.perfetto.dev.
    """
    many = bench.swapped()
    for name, pipeline in (("one", ONE_AT_A_TIME), ("two", FULL)):
        one_pass(bench, many, pipeline)
        with trace.collected() as collected:
            one_pass(bench, many, pipeline)
        copies, layers = device_spans(collected, "modules"), device_spans(collected, "layer")
        share = overlap(copies, layers) / max(covered(copies), 1e-12)
        yield Row(f"gpu_copies_under_layers_of_{name}", round(share, 3), "of their time")
        yield Row(
            f"gpu_copies_over_layers_of_{name}", round(covered(copies) / covered(layers), 3), "of the time"
        )
    if file is not None:
        collected.write(file)
