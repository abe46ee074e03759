"""Speeds of a device's layers and kernels, divided by the limits of the device: matrix products, memory,
launches.

The limits are measured: a large product of square matrices, and a copy within the device's memory.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hmi_kernels.lookup.cuda import LookupDevice
from numpy.typing import NDArray

from bench.cases.serve.gpu_bench import GpuBench
from bench.harness.report import Figure, median_seconds
from hmi.execution import trace
from hmi.execution.batch import BatchKey, Rows
from hmi.execution.cuda import CudaExecutor, Device
from hmi.execution.cuda.device import StreamEvent
from hmi.model.network.shape import EncoderShape
from hmi.model.tenant.modules import TenantModule
from plot_store import Reader, Schema, Store

PEAK_SIZE, COPY_BYTES = 8192, 1 << 30
"""The measured limits: a product of square matrices, and a copy from device memory to device memory."""
IN_A_ROW = 20
"""Batches that are enqueued before the last is waited for."""
SHORT = 16
"""Tokens of the short text."""
LOOKUP_TOKENS, LOOKUP_ENTRIES = 1 << 22, 1 << 18
"""Tokens of the timed look-up, and trigrams of its PLOT, whose rows the device's caches do not hold."""
LOOKUP_DIM, LOOKUP_CHUNK = 384, 1 << 13
GOAL, LOOKUP_GOAL = 0.7, 0.6
KEY = BatchKey(("bench", "0"), "rows", exact=False)


def batch_of(executor: CudaExecutor, texts: int, length: int, dim: int) -> Rows:
    """Random rows in the memory that the device copies from."""
    rows = executor.space(texts * length)
    rows.copy_(torch.randn(rows.shape, generator=torch.Generator().manual_seed(3)))
    return Rows.packed(rows, list(range(0, texts * length + 1, length)))


def limits(bench: GpuBench) -> Iterator[Figure]:
    """The figures: layers over matrix products, modules over memory, graphs over launches one by one."""
    executor, device, sizes, runs = bench.executor, bench.device, bench.sizes, bench.sizes.runs
    first, none = bench.tenants(1)[0], [None] * sizes.texts
    rows = batch_of(executor, sizes.texts, sizes.length, sizes.shape.dim)
    plain, peak = _batch_s(executor, rows, none, runs), _peak(executor, device, runs)
    work = _operations(executor.shape, len(rows.x), sizes.length) * executor.layers
    layers = round(work / _layers_s(executor, rows, none) / peak, 3)
    yield Figure("gpu_layers_over_matmul_peak", layers, "x", GOAL, runs=IN_A_ROW, peer="a large product")
    peer = "a large product; ours with the copies from and to the host"
    yield Figure("gpu_batch_over_matmul_peak", round(work / plain / peak, 3), "x", runs=runs, peer=peer)
    if executor.ways.launcher is not None:
        yield _modules(bench, rows, plain)
    yield from _graphs(executor, first if executor.ways.launcher else None, runs)


def lookups(device: Device, there: LookupDevice, runs: int) -> Iterator[Figure]:
    """The bytes a second of a large look-up, beside those of a copy within the device's memory.

    there: the same device as look-ups know it. Counted are the least bytes that must move: each token's id,
    its stored row, and its answer in bf16.
    """
    rng, vocab = np.random.default_rng(0), int(LOOKUP_ENTRIES**0.5)
    grams = np.stack(np.divmod(np.arange(vocab * vocab, dtype=np.uint32), vocab), 1)[:, [0, 1, 1]] + 1
    with tempfile.TemporaryDirectory() as folder, _reader(Path(folder), vocab + 1, grams) as reader:
        tokens = grams[rng.integers(0, len(grams), LOOKUP_TOKENS // 3)].reshape(-1)
        offsets = np.arange(0, len(tokens) + 1, 3)
        with reader.on_device(there) as found:
            given = [_put(there, a) for a in (tokens.astype(np.int32), offsets)]
            out = there.empty((len(tokens), LOOKUP_DIM), np.uint16)
            took = median_seconds(partial(found.lookup, *given, out=out), runs, time.perf_counter)
    rate, copied = len(tokens) * (4 + 3 * LOOKUP_DIM) / took, _bandwidth(device, runs)
    yield Figure("gpu_copy_gb_per_s", round(copied / 1e9, 1), "GB/s", runs=runs)
    yield Figure("gpu_lookup_gb_per_s", round(rate / 1e9, 1), "GB/s", runs=runs)
    share, peer = round(rate / copied, 3), "a copy on the device"
    yield Figure("gpu_lookup_over_bandwidth", share, "x", LOOKUP_GOAL, runs=runs, peer=peer)


@contextmanager
def _reader(folder: Path, vocab: int, grams: NDArray[np.uint32]) -> Iterator[Reader]:
    """A PLOT of these trigrams. Their rows of int8 are the same ones again and again."""
    rng, store = np.random.default_rng(1), Store.open(folder / "plots", create=True)
    rows = rng.standard_normal((LOOKUP_CHUNK, 3, LOOKUP_DIM), np.float32)
    schema = Schema(dim=LOOKUP_DIM, vocab=vocab)
    with store, store.writer("lookup", schema=schema, build="lookup") as writer:
        for at in range(0, len(grams), LOOKUP_CHUNK):
            some = grams[at : at + LOOKUP_CHUNK]
            writer.add(3, some, rows[: len(some)])
        writer.publish()
        with store.reader("lookup") as reader:
            yield reader


def _put(there: LookupDevice, host: NDArray[Any]) -> Any:
    array = there.empty(host.shape, host.dtype)
    there.write(host, array)
    return array


def _layers_s(executor: CudaExecutor, rows: Rows, none: Sequence[None]) -> float:
    """Seconds in which the device computes a batch's layers, without copies."""
    with trace.collected() as seen:
        for _ in range(IN_A_ROW):
            ((_, there),) = executor.start(KEY, rows, none)
        there.wait()
    return covered(device_spans(seen, "layer")) / 1e6 / IN_A_ROW


def _modules(bench: GpuBench, rows: Rows, plain: float) -> Figure:
    """The bytes a second that modules move in the time that they add to a batch, beside those of a copy."""
    name, peer, executor, runs = (
        "gpu_modules_over_bandwidth",
        "a copy on the device",
        bench.executor,
        bench.sizes.runs,
    )
    modules = bench.tenants(bench.sizes.texts)
    added = _batch_s(executor, rows, modules, runs) - plain
    if added < plain / 20:
        return Figure(name, None, "x", peer=peer, why="the modules add too little time for a difference")
    moved = sum(executor.prepare(m) for m in modules) + _rows_bytes(executor, len(rows.x))
    return Figure(name, round(moved / added / _bandwidth(bench.device, runs), 3), "x", runs=runs, peer=peer)


def _graphs(executor: CudaExecutor, module: TenantModule | None, runs: int) -> Iterator[Figure]:
    """One short text, where launches take longest beside the work, with graphs and without."""
    rows, was = batch_of(executor, 1, SHORT, executor.shape.dim), executor.graphs.on
    took = {}
    for on in (False, True):
        executor.graphs.on = on
        each = [batch_s(executor, KEY, rows, [module]) for _ in range(IN_A_ROW + runs)]
        took[on] = statistics.median(each[IN_A_ROW:])
    executor.graphs.on = was
    yield Figure("gpu_short_text_ms", round(1e3 * took[True], 4), "ms", runs=runs)
    ratio = round(took[False] / took[True], 3)
    yield Figure("gpu_short_text_graphs_over_none", ratio, "x", runs=runs, peer="no graphs")
    shapes, held = executor.graphs.held()
    yield Figure("gpu_graphs_mb", round(held / 1e6, 6), "MB", peer=f"{shapes} shapes")


def _operations(shape: EncoderShape, rows: int, length: int) -> float:
    """Floating-point operations of one layer: its linear maps, and attention."""
    d = shape.dim
    return 2.0 * rows * (4 * d * d + 2 * d * shape.ffn) + 4.0 * rows * length * d


def _rows_bytes(executor: CudaExecutor, rows: int) -> float:
    """The least bytes of rows that LoRAs on six sites move: each reads x, and reads and writes y."""
    d, f = executor.shape.dim, executor.shape.ffn
    return float(executor.layers * rows * (4 * 3 * d + (d + 2 * f) + (f + 2 * d)) * executor.dtype.itemsize)


def _batch_s(executor: CudaExecutor, rows: Rows, modules: Sequence[TenantModule | None], runs: int) -> float:
    """Seconds of a batch while others wait on the device."""
    packed = [None if m is None else executor.packed(m) for m in modules]

    def work() -> StreamEvent:
        for _ in range(IN_A_ROW):
            ((_, there),) = executor.start(KEY, rows, packed)
        return there

    return _timed(work, runs) / IN_A_ROW


def batch_s(
    executor: CudaExecutor, key: BatchKey, rows: Rows, modules: Sequence[TenantModule | None]
) -> float:
    """Seconds of one batch whose results are waited for."""
    begun = time.perf_counter()
    for _ in executor.run(key, rows, modules):
        pass
    return time.perf_counter() - begun


def _peak(executor: CudaExecutor, device: Device, runs: int) -> float:
    """Operations a second of a large product in the executor's precision."""
    n = min(PEAK_SIZE, 16 * executor.shape.dim)
    g = torch.Generator().manual_seed(4)
    a, b = (device.put(torch.randn(n, n, generator=g).to(executor.dtype)) for _ in range(2))
    stream = device.compute()

    def work() -> StreamEvent:
        for _ in range(IN_A_ROW):
            stream.work("product", (n, n), executor.dtype, lambda: a @ b)
        return stream.record()

    return 2.0 * n**3 * IN_A_ROW / _timed(work, runs)


def _bandwidth(device: Device, runs: int) -> float:
    """The bandwidth of a copy within the device's memory, reads and writes together, in bytes a second."""
    there = [device.empty((COPY_BYTES // 4,), torch.float32) for _ in range(2)]
    stream = device.compute()

    def work() -> StreamEvent:
        for _ in range(IN_A_ROW):
            stream.copy(there[0], there[1], "copy")
        return stream.record()

    return 2.0 * COPY_BYTES * IN_A_ROW / _timed(work, runs)


def _timed(work: Callable[[], StreamEvent], runs: int) -> float:
    """The median seconds until what `work` enqueues has run, after one run that does not count."""
    return median_seconds(lambda: work().wait(), runs, time.perf_counter)


Spans = list[tuple[float, float]]
"""Stretches of a device's time: begin and end in microseconds."""


def device_spans(collected: trace.ChromeTrace, name: str) -> Spans:
    """The device's spans whose names begin with the word `name`, from a collected timeline."""
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
