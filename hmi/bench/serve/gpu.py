"""The pipeline on a CUDA device: the paper's ablation (Table 6), dedicated models, and many tenants.

Weights, rows and modules are random, since they change no time. The look-up is the store's own, over a PLOT
that covers the texts. `run` takes any `Device`: tests run it on the twin, in small, where its figures mean
nothing.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hmi.bench.report import Row
from hmi.bench.serve.gpu_limits import batch_of, limits
from hmi.execution.batch import BatchKey, Rows
from hmi.execution.cuda import CudaExecutor, Device
from hmi.execution.cuda.choose import kernels_for, sound_executor
from hmi.execution.cuda.torch_device import CudaDevice
from hmi.jobs.ngrams import ragged
from hmi.model.encoder import EncoderLayer
from hmi.model.modules import LowRank, TenantModule, sizes_of
from hmi.model.shape import EncoderShape
from hmi.modulespec import SITES
from plot_store import NgramCounter, Reader, Schema, Store

BERT_BASE = EncoderShape(30522, 768, 12, 12, 3072, 512, 2, 1e-12)
PAPER_OVER_DEDICATED, PAPER_OVERLAPS = 2.31, 1.2
"""The goals: Table 6's throughput over dedicated models, and the gain of both overlaps together."""
KEY = BatchKey(("bench", "0"), "cls", exact=False)


@dataclass(frozen=True)
class Sizes:
    """The sizes of a run."""

    shape: EncoderShape = BERT_BASE
    upper: int = 6
    """The layers above the split; a dedicated model runs all of `shape.layers`."""
    texts: int = 16
    """Texts in a batch, a tenant each."""
    length: int = 128
    batches: int = 100
    rank: int = 8
    tenants: tuple[int, ...] = (16, 1_000, 10_000)
    """Numbers of tenants. The first is compared with dedicated models, the others with the first."""
    slot_bytes: int = 1 << 30
    runs: int = 7
    """Interleaved repetitions of each ratio."""


@dataclass(frozen=True)
class Pipeline:
    """One way of overlapping: Figure 10's schemes."""

    threads: int = 2
    """With two, one retrieves while the device computes the other's batch."""
    layer_by_layer: bool = True
    """True: modules are copied while earlier layers compute. False: the thread first waits for all copies."""


FULL = Pipeline()
ABLATION = {
    "no_pipelined_retrieval": Pipeline(threads=1),
    "no_pipelined_swap": Pipeline(layer_by_layer=False),
    "neither": Pipeline(threads=1, layer_by_layer=False),
}


def steps(plan: object) -> int:
    """Return the number of times that `measure` calls `report`."""
    return 6


def measure(plan: object, home: object, report: Callable[[str], None]) -> Iterator[Row]:
    """The figures of this machine's first CUDA device: a section of `hmi bench serve`."""
    if not torch.cuda.is_available():
        yield Row("gpu", None, "x", why="torch finds no CUDA device")
        return
    yield from run(CudaDevice(), Sizes(), report, precision="bf16")


def run(device: Device, sizes: Sizes, report: Callable[[str], None], precision: str) -> Iterator[Row]:
    """Measure all on `device`, and report each step as it begins."""
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        report("a PLOT, and modules")
        bench = _prepare(Path(folder), device, sizes, precision)
        with bench.reader:
            report("the ablation")
            yield from _ablation(bench)
            report("dedicated models")
            yield _dedicated(bench, device, precision)
            report("many tenants")
            yield from _flat(bench)
            report("modules")
            yield from _modules(bench)
            report("limits of the device")
            yield from limits(bench.executor, device, bench.tenants(sizes.texts), sizes.length, sizes.runs)
        bench.threads.shutdown()


@dataclass
class _Bench:
    sizes: Sizes
    executor: CudaExecutor
    reader: Reader
    tokens: NDArray[np.int32]
    """One batch's tokens, [texts · length]."""
    common: dict[str, tuple[Tensor, Tensor]]
    """The tensors that all tenants' modules share on the host, by site."""
    modules: list[TenantModule] = field(default_factory=list)
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2, "bench"))
    """The compute threads, which keep their streams and graphs."""
    passes: Iterator[int] = field(default_factory=itertools.count)

    def tenants(self, count: int) -> list[TenantModule]:
        """Prepare one module for each tenant, with its own copy in pinned memory and on the device."""
        while len(self.modules) < count:
            sites = {
                f"{i}-{site}": LowRank(*both)
                for i in range(self.sizes.upper)
                for site, both in self.common.items()
            }
            module = TenantModule(sites).eval().requires_grad_(False)
            self.executor.prepare(module)
            self.modules.append(module)
        return self.modules[:count]


def _prepare(folder: Path, device: Device, sizes: Sizes, precision: str) -> _Bench:
    shape, g = sizes.shape, torch.Generator().manual_seed(0)
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, shape.vocab, sizes.texts * sizes.length).astype(np.int32)
    common = dict[str, tuple[Tensor, Tensor]]()
    for site in SITES["lora"]:
        size_in, size_out = sizes_of(site, shape)
        down, up = (
            torch.randn(sizes.rank, size_in, generator=g),
            torch.randn(size_out, sizes.rank, generator=g),
        )
        common[site] = 0.02 * down, 0.02 * up
    layers = _layers(shape, sizes.upper)
    launcher = kernels_for("bench") if isinstance(device, CudaDevice) else None
    executor = sound_executor(layers, shape, precision, device, sizes.slot_bytes, launcher)
    return _Bench(sizes, executor, _plot(folder, sizes, tokens), tokens, common)


def _layers(shape: EncoderShape, count: int) -> nn.ModuleList:
    g = torch.Generator().manual_seed(0)
    layers = nn.ModuleList(EncoderLayer(shape) for _ in range(count)).eval().requires_grad_(False)
    for name, p in layers.named_parameters():
        if "ln" not in name:
            p.data.copy_(torch.randn(p.shape, generator=g) * 0.02)
    return layers


def _plot(folder: Path, sizes: Sizes, tokens: NDArray[np.int32]) -> Reader:
    """A reader of random entries for every trigram of the batch."""
    store, dim = Store.open(folder / "plots", create=True), sizes.shape.dim
    texts = tokens.reshape(sizes.texts, sizes.length).tolist()
    with NgramCounter(3, (3,), folder / "counts") as counter:
        counter.add(*ragged(texts))
        counted = counter.finish()
    rng = np.random.default_rng(1)
    with store.writer("bench", schema=Schema(dim=dim, vocab=sizes.shape.vocab), build="bench") as writer:
        for chunk in counted.covering(3, 100):
            writer.add(3, chunk, rng.standard_normal((len(chunk), 3, dim)).astype(np.float32))
        writer.publish()
    return store.reader("bench")


def _batches(bench: _Bench, tenants: Sequence[TenantModule]) -> list[list[TenantModule]]:
    """Return the tenants of each batch, in turn: with many tenants each batch and pass brings new ones."""
    texts, batches = bench.sizes.texts, bench.sizes.batches
    begin = next(bench.passes) * batches
    return [
        [tenants[(b * texts + i) % len(tenants)] for i in range(texts)] for b in range(begin, begin + batches)
    ]


def _pass(bench: _Bench, tenants: Sequence[TenantModule], pipeline: Pipeline) -> float:
    """Texts a second over all batches."""
    batches = _batches(bench, tenants)

    def work(first: int) -> None:
        for modules in batches[first :: pipeline.threads]:
            _batch(bench, modules, pipeline)

    return len(batches) * bench.sizes.texts / _on_threads(bench, work, pipeline.threads)


def _batch(bench: _Bench, modules: list[TenantModule], pipeline: Pipeline) -> None:
    executor, sizes = bench.executor, bench.sizes
    if pipeline.layer_by_layer:
        executor.prefetch(modules)
    rows = executor.space(len(bench.tokens))
    offsets = list(range(0, len(bench.tokens) + 1, sizes.length))
    bench.reader.lookup(bench.tokens, np.array(offsets, np.int64), out=rows.numpy())
    if not pipeline.layer_by_layer:
        executor.prefetch(modules)
        executor.slots.settled()
    for _ in executor.run(KEY, Rows.packed(rows, offsets), modules):
        pass


def _on_threads(bench: _Bench, work: Callable[[int], None], threads: int) -> float:
    """Seconds of `work(0)` to `work(threads - 1)`, each on a thread. Raises what they raise."""

    def run(i: int) -> None:
        with torch.inference_mode():
            work(i)

    begun = time.perf_counter()
    for done in [bench.threads.submit(run, i) for i in range(threads)]:
        done.result()
    return time.perf_counter() - begun


def _ratio(runs: int, above: Callable[[], float], below: Callable[[], float]) -> float:
    """The median of above / below over interleaved runs, after one of each that does not count."""
    above()
    below()
    return statistics.median(above() / below() for _ in range(runs))


def _ablation(bench: _Bench) -> Iterator[Row]:
    sizes = bench.sizes
    many = bench.tenants(sizes.tenants[-1])  # more than the slots hold, so that modules are swapped
    yield Row("gpu_texts_per_s", round(_pass(bench, many, FULL), 1), "texts/s", runs=1)
    for name, pipeline in ABLATION.items():
        value = _ratio(sizes.runs, lambda: _pass(bench, many, FULL), lambda p=pipeline: _pass(bench, many, p))  # type: ignore[misc]
        goal = PAPER_OVERLAPS if name == "neither" else None
        yield Row(f"gpu_full_over_{name}", round(value, 3), "x", goal, runs=sizes.runs, peer=name)


def _dedicated(bench: _Bench, device: Device, precision: str) -> Row:
    """Compare with a whole model for each tenant. These models run one after another."""
    sizes, shape = bench.sizes, bench.sizes.shape
    count, layers = sizes.tenants[0], _layers(shape, shape.layers)
    models = [CudaExecutor(layers, shape, precision, device, slot_bytes=0) for _ in range(count)]
    for model in models:
        model.graphs.on = bench.executor.graphs.on  # each in its best mode
    g = torch.Generator().manual_seed(2)
    rows = Rows.packed(torch.randn(sizes.length, shape.dim, generator=g), [0, sizes.length])
    calls = sizes.batches * sizes.texts

    def dedicated() -> float:
        def work(first: int) -> None:
            for i in range(first, calls, FULL.threads):
                for _ in models[i % count].run(KEY, replace(rows), [None]):
                    pass

        return calls / _on_threads(bench, work, FULL.threads)

    few = bench.tenants(count)
    value = _ratio(sizes.runs, lambda: _pass(bench, few, FULL), dedicated)
    peer = f"{count} dedicated models, without their embeddings"
    return Row("gpu_over_dedicated", round(value, 3), "x", PAPER_OVER_DEDICATED, runs=sizes.runs, peer=peer)


def _flat(bench: _Bench) -> Iterator[Row]:
    sizes = bench.sizes
    one = bench.tenants(1)
    for count in sizes.tenants:
        many = bench.tenants(count)
        value = _ratio(sizes.runs, lambda m=many: _pass(bench, m, FULL), lambda: _pass(bench, one, FULL))  # type: ignore[misc]
        yield Row(
            f"gpu_{count}_tenants_over_one", round(value, 3), "x", 0.95, runs=sizes.runs, peer="1 tenant"
        )


def _modules(bench: _Bench) -> Iterator[Row]:
    """Measure the cost of a batch's modules when all of them are already on the device."""
    few, sizes = bench.tenants(bench.sizes.texts), bench.sizes

    rows = batch_of(bench.executor, sizes.texts, sizes.length, sizes.shape.dim)

    def time_of(modules: Sequence[TenantModule | None]) -> float:
        begun = time.perf_counter()
        for _ in bench.executor.run(KEY, rows, modules):
            pass
        return time.perf_counter() - begun

    value = _ratio(sizes.runs, lambda: time_of(few), lambda: time_of([None] * sizes.texts))
    yield Row("gpu_modules_over_none", round(value, 3), "x", 1.05, False, sizes.runs, "no modules")
    yield Row("gpu_slots_mb", round(bench.executor.slots.bytes / 1e6, 1), "MB")
