"""The pipeline on a CUDA device: the paper's ablation (Table 6), dedicated models, tenants, and overlaps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from bench.cases.serve.gpu_bench import (
    FULL,
    KEY,
    GpuBench,
    OverlapScheme,
    compared,
    layers_of,
    on_threads,
    one_pass,
)
from bench.cases.serve.gpu_limits import batch_of, batch_s, covered, device_spans, overlap
from bench.harness.report import Figure
from hmi.execution import trace
from hmi.execution.cuda import CudaExecutor
from hmi.execution.cuda.graphs import RECURS
from hmi.model.tenant.modules import TenantModule

OVER_DEDICATED, OVERLAPS, FLAT, MODULES = 3.0, 1.25, 0.95, 1.05
"""The goals: throughput over dedicated models (Table 6: 2.31), the gain of both overlaps together (Table 6:
1.2), the throughput of many tenants over one's, and the time of a batch with modules over without."""
ABLATION = {
    "no_pipelined_retrieval": OverlapScheme(threads=1),
    "no_pipelined_swap": OverlapScheme(layer_by_layer=False),
    "neither": OverlapScheme(threads=1, layer_by_layer=False),
}
ONE_AT_A_TIME = OverlapScheme(threads=1, ahead=False)


def ablation(bench: GpuBench) -> Iterator[Figure]:
    """Each way of overlapping left out (Table 6), with more tenants than the slots hold."""
    sizes, many = bench.sizes, bench.swapped()
    full = partial(one_pass, bench, many, FULL)
    for name, pipeline in ABLATION.items():
        value, _ = compared(sizes.runs, full, partial(one_pass, bench, many, pipeline))
        goal = OVERLAPS if name == "neither" else None
        yield Figure(f"gpu_full_over_{name}", round(value, 3), "x", goal, runs=sizes.runs, peer=name)


def dedicated(bench: GpuBench) -> Iterator[Figure]:
    """Compare with a whole model for each of some tenants. These models run one after another."""
    sizes, count = bench.sizes, bench.sizes.dedicated
    few = bench.tenants(count)
    for name, peer, made in (
        ("gpu_over_dedicated", f"{count} models of all layers on HMI's executor, no embeddings", _own),
        ("gpu_over_transformers", f"{count} models of transformers, eager, sdpa", _transformers),
    ):
        try:
            one = made(bench)
        except Exception as error:  # another release of transformers, or none
            yield Figure(name, None, "x", OVER_DEDICATED, peer=peer, why=f"{type(error).__name__}: {error}")
            continue

        def each(one: Callable[[int], None] = one) -> float:
            calls = sizes.batches * sizes.texts

            def work(first: int) -> None:
                for i in range(first, calls, FULL.threads):
                    one(i % count)

            return calls / on_threads(bench, work, FULL.threads)

        on_threads(bench, partial(_warmed, one, count), FULL.threads)
        value, _ = compared(sizes.runs, lambda: one_pass(bench, few, FULL), each)
        yield Figure(name, round(value, 3), "x", OVER_DEDICATED, runs=sizes.runs, peer=peer)


def _warmed(one: Callable[[int], None], count: int, thread: int) -> None:
    """Let every model answer often enough for its graphs on this thread."""
    for i in range(count * (RECURS + 1)):
        one(i % count)


def _own(bench: GpuBench) -> Callable[[int], None]:
    """A function that lets the i-th dedicated model answer a text, by HMI's own executor in its best mode."""
    sizes, shape = bench.sizes, bench.sizes.shape
    layers = layers_of(shape, shape.layers)
    executor = partial(CudaExecutor, layers, shape, bench.precision, bench.device, slot_bytes=0)
    models = [executor() for _ in range(sizes.dedicated)]
    for model in models:
        model.graphs.on = bench.executor.graphs.on
    rows = batch_of(models[0], 1, sizes.length, shape.dim)

    def answer(i: int) -> None:
        for _ in models[i].run(KEY, replace(rows), [None]):
            pass

    return answer


def _transformers(bench: GpuBench) -> Callable[[int], None]:
    """The same by the models of transformers in their default mode. Raises ImportError."""
    from transformers import BertConfig, BertModel

    shape, device, dtype = bench.sizes.shape, bench.device, bench.executor.dtype
    config = BertConfig(  # type: ignore[no-untyped-call]
        vocab_size=shape.vocab,
        hidden_size=shape.dim,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.ffn,
        max_position_embeddings=shape.positions,
    )
    made: nn.Module = BertModel(config, add_pooling_layer=False)  # type: ignore[no-untyped-call]
    made = made.to(dtype).eval().requires_grad_(False)
    models = [copy.deepcopy(made) for _ in range(bench.sizes.dedicated)]
    for part in (part for model in models for part in (*model.parameters(), *model.buffers())):
        part.data = device.put(part.data)
    ids = device.put(torch.ones(1, bench.sizes.length, dtype=torch.int64))

    def answer(i: int) -> None:
        stream, out = device.compute(), device.pinned((1, shape.dim), dtype)
        found = stream.work("peer", (1, shape.dim), dtype, lambda: models[i](ids).last_hidden_state[:, 0])
        stream.copy(found, out, "results")
        stream.record().wait()

    return answer


def flat(bench: GpuBench) -> Iterator[Figure]:
    """Compare the throughput of many tenants with one's."""
    sizes, one = bench.sizes, partial(one_pass, bench, bench.tenants(1), FULL)
    for count in sizes.tenants:
        many = bench.tenants(count)
        value, texts = compared(sizes.runs, partial(one_pass, bench, many, FULL), one)
        yield Figure(f"gpu_{count}_tenants_texts_per_s", round(texts, 1), "texts/s", runs=sizes.runs)
        if count > 1:
            peer = "1 tenant"
            yield Figure(
                f"gpu_{count}_tenants_over_one", round(value, 3), "x", FLAT, runs=sizes.runs, peer=peer
            )


def modules(bench: GpuBench) -> Iterator[Figure]:
    """Measure the cost of a batch's modules when all of them are already on the device."""
    few, sizes = bench.tenants(bench.sizes.crowd), bench.sizes
    rows = batch_of(bench.executor, sizes.crowd, sizes.length, sizes.shape.dim)

    none: list[TenantModule | None] = [None] * sizes.crowd
    with_them, without = (partial(batch_s, bench.executor, KEY, rows, modules) for modules in (few, none))
    for _ in range(RECURS + 1):  # until both have their graphs
        with_them()
        without()
    value, _ = compared(sizes.runs, with_them, without)
    peer = f"no modules, {sizes.crowd} texts, copies of rows and results included"
    yield Figure("gpu_modules_over_none", round(value, 3), "x", MODULES, False, sizes.runs, peer)
    yield Figure("gpu_slots_mb", round(bench.executor.slots.bytes / 1e6, 1), "MB")


def timeline(bench: GpuBench, file: Path | None = None) -> Iterator[Figure]:
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
        yield Figure(f"gpu_copies_under_layers_of_{name}", round(share, 3), "of their time")
        yield Figure(
            f"gpu_copies_over_layers_of_{name}", round(covered(copies) / covered(layers), 3), "of the time"
        )
    if file is not None:
        collected.write(file)
