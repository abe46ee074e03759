"""The pipeline on a CUDA device: the paper's ablation (Table 6), dedicated models, and many tenants.

Weights, rows and modules are random, since they change no time. The look-up is the store's own, over a PLOT
that covers the texts. `opened` takes any `Device`: tests and `scripts/gpu_trial.py` pass the twin, in small,
where the figures mean nothing.
"""

from __future__ import annotations

import copy
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from hmi_kernels.modules import ops
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
OVER_DEDICATED, OVERLAPS, FLAT, MODULES = 3.0, 1.25, 0.95, 1.05
"""The goals: throughput over dedicated models (Table 6: 2.31), the gain of both overlaps together (Table 6:
1.2), the throughput of many tenants over one's, and the time of a batch with modules over without."""
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
    batches: int = 50
    rank: int = 8
    dedicated: int = 16
    """The number of tenants that are compared with dedicated models."""
    crowd: int = 64
    """The texts, a tenant each, of the batch that shows what modules cost."""
    tenants: tuple[int, ...] = (1, 16, 100, 1_000, 10_000)
    """Numbers of tenants, each of which is compared with one."""
    slot_bytes: int = 1 << 30
    runs: int = 5
    """Interleaved repetitions of each ratio."""


TINY = Sizes(
    shape=EncoderShape(50, 16, 2, 4, 32, 64, 2, 1e-12),
    upper=2,
    texts=3,
    length=8,
    batches=4,
    rank=2,
    dedicated=2,
    crowd=4,
    tenants=(1, 3, 9),
    slot_bytes=1 << 16,
    runs=1,
)
"""Sizes that show on the twin that the code works."""


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
    return 1 + len(PARTS)


def measure(plan: object, home: object, report: Callable[[str], None]) -> Iterator[Row]:
    """The figures of this machine's first CUDA device: a section of `hmi bench serve`."""
    if not torch.cuda.is_available():
        yield Row("gpu", None, "x", why="torch finds no CUDA device")
        return
    report("a PLOT, and an executor")
    with opened(CudaDevice(), Sizes(), "bf16", kernels_for("bench")) as bench:
        yield from run(bench, report)


@contextmanager
def opened(device: Device, sizes: Sizes, precision: str, launcher: ops.Launcher | None) -> Iterator[Bench]:
    """Prepare an executor on `device`, a PLOT and a batch's tokens. launcher: the kernels of modules."""
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        bench = _prepare(Path(folder), device, sizes, precision, launcher)
        with bench.reader:
            yield bench
        bench.threads.shutdown()


def run(bench: Bench, report: Callable[[str], None]) -> Iterator[Row]:
    """Measure all, and report each part as it begins."""
    for name, part in PARTS.items():
        report(name)
        yield from part(bench)


@dataclass
class Bench:
    """What the parts of a run share."""

    sizes: Sizes
    device: Device
    precision: str
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
        layers = range(self.sizes.upper)
        sites = {f"{i}-{site}": LowRank(*both) for i in layers for site, both in self.common.items()}
        while len(self.modules) < count:
            module = TenantModule(sites).eval().requires_grad_(False)
            self.executor.prepare(module)
            self.modules.append(module)
        return self.modules[:count]

    def swapped(self) -> list[TenantModule]:
        """Tenants that are more than the slots hold, so that every batch brings modules."""
        counts, slots = self.sizes.tenants, self.executor.slots.count
        return self.tenants(next((count for count in counts if count > slots), counts[-1]))


def _prepare(
    folder: Path, device: Device, sizes: Sizes, precision: str, launcher: ops.Launcher | None
) -> Bench:
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
    layers = layers_of(shape, sizes.upper)
    executor = sound_executor(layers, shape, precision, device, sizes.slot_bytes, launcher)
    return Bench(sizes, device, precision, executor, _plot(folder, sizes, tokens), tokens, common)


def layers_of(shape: EncoderShape, count: int) -> nn.ModuleList:
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


def _batches(bench: Bench, tenants: Sequence[TenantModule]) -> list[list[TenantModule]]:
    """Return the tenants of each batch, in turn: with many tenants each batch and pass brings new ones."""
    texts, batches = bench.sizes.texts, bench.sizes.batches
    begin = next(bench.passes) * batches
    return [
        [tenants[(b * texts + i) % len(tenants)] for i in range(texts)] for b in range(begin, begin + batches)
    ]


def one_pass(bench: Bench, tenants: Sequence[TenantModule], pipeline: Pipeline) -> float:
    """Texts a second over all batches."""
    batches = _batches(bench, tenants)

    def work(first: int) -> None:
        for modules in batches[first :: pipeline.threads]:
            _batch(bench, modules, pipeline)

    return len(batches) * bench.sizes.texts / _on_threads(bench, work, pipeline.threads)


def _batch(bench: Bench, modules: list[TenantModule], pipeline: Pipeline) -> None:
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


def _on_threads(bench: Bench, work: Callable[[int], None], threads: int) -> float:
    """Seconds of `work(0)` to `work(threads - 1)`, each on a thread. Raises what they raise."""

    def run(i: int) -> None:
        with torch.inference_mode():
            work(i)

    begun = time.perf_counter()
    for done in [bench.threads.submit(run, i) for i in range(threads)]:
        done.result()
    return time.perf_counter() - begun


def _compared(runs: int, above: Callable[[], float], below: Callable[[], float]) -> tuple[float, float]:
    """The medians of above / below, and of above, over interleaved runs, after one of each that does not
    count."""
    above()
    below()
    seen = [(above(), below()) for _ in range(runs)]
    return statistics.median(a / b for a, b in seen), statistics.median(a for a, _ in seen)


def ablation(bench: Bench) -> Iterator[Row]:
    """Each way of overlapping left out (Table 6), with more tenants than the slots hold."""
    sizes, many = bench.sizes, bench.swapped()
    full = partial(one_pass, bench, many, FULL)
    for name, pipeline in ABLATION.items():
        value, _ = _compared(sizes.runs, full, partial(one_pass, bench, many, pipeline))
        goal = OVERLAPS if name == "neither" else None
        yield Row(f"gpu_full_over_{name}", round(value, 3), "x", goal, runs=sizes.runs, peer=name)


def dedicated(bench: Bench) -> Iterator[Row]:
    """Compare with a whole model for each of some tenants. These models run one after another."""
    sizes, count = bench.sizes, bench.sizes.dedicated
    few = bench.tenants(count)
    for name, peer, one in (
        ("gpu_over_dedicated", f"{count} models of all layers on HMI's executor, no embeddings", _own(bench)),
        ("gpu_over_transformers", f"{count} models of transformers, eager, sdpa", _transformers(bench)),
    ):
        if one is None:
            yield Row(name, None, "x", OVER_DEDICATED, peer=peer, why="transformers is not installed")
            continue

        def each(one: Callable[[int], None] = one) -> float:
            calls = sizes.batches * sizes.texts

            def work(first: int) -> None:
                for i in range(first, calls, FULL.threads):
                    one(i % count)

            return calls / _on_threads(bench, work, FULL.threads)

        value, _ = _compared(sizes.runs, lambda: one_pass(bench, few, FULL), each)
        yield Row(name, round(value, 3), "x", OVER_DEDICATED, runs=sizes.runs, peer=peer)


def _own(bench: Bench) -> Callable[[int], None]:
    """A function that lets the i-th dedicated model answer a text, by HMI's own executor in its best mode."""
    sizes, shape = bench.sizes, bench.sizes.shape
    layers = layers_of(shape, shape.layers)
    executor = partial(CudaExecutor, layers, shape, bench.precision, bench.device, slot_bytes=0)
    models = [executor() for _ in range(sizes.dedicated)]
    for model in models:
        model.graphs.on = bench.executor.graphs.on
    g = torch.Generator().manual_seed(2)
    rows = Rows.packed(torch.randn(sizes.length, shape.dim, generator=g), [0, sizes.length])

    def answer(i: int) -> None:
        for _ in models[i].run(KEY, replace(rows), [None]):
            pass

    return answer


def _transformers(bench: Bench) -> Callable[[int], None] | None:
    """The same by the models of transformers in their default mode; None if it is not installed."""
    try:
        from transformers import BertConfig, BertModel
    except ImportError:
        return None
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


def flat(bench: Bench) -> Iterator[Row]:
    """Compare the throughput of many tenants with one's."""
    sizes, one = bench.sizes, partial(one_pass, bench, bench.tenants(1), FULL)
    for count in sizes.tenants:
        many = bench.tenants(count)
        value, texts = _compared(sizes.runs, partial(one_pass, bench, many, FULL), one)
        yield Row(f"gpu_{count}_tenants_texts_per_s", round(texts, 1), "texts/s", runs=sizes.runs)
        if count > 1:
            peer = "1 tenant"
            yield Row(f"gpu_{count}_tenants_over_one", round(value, 3), "x", FLAT, runs=sizes.runs, peer=peer)


def modules(bench: Bench) -> Iterator[Row]:
    """Measure the cost of a batch's modules when all of them are already on the device."""
    few, sizes = bench.tenants(bench.sizes.crowd), bench.sizes
    rows = batch_of(bench.executor, sizes.crowd, sizes.length, sizes.shape.dim)

    def time_of(modules: Sequence[TenantModule | None]) -> float:
        begun = time.perf_counter()
        for _ in bench.executor.run(KEY, rows, modules):
            pass
        return time.perf_counter() - begun

    value, _ = _compared(sizes.runs, lambda: time_of(few), lambda: time_of([None] * sizes.crowd))
    peer = f"no modules, {sizes.crowd} texts"
    yield Row("gpu_modules_over_none", round(value, 3), "x", MODULES, False, sizes.runs, peer)
    yield Row("gpu_slots_mb", round(bench.executor.slots.bytes / 1e6, 1), "MB")


def device_limits(bench: Bench) -> Iterator[Row]:
    """Compare with the limits of the device."""
    sizes = bench.sizes
    yield from limits(bench.executor, bench.device, bench.tenants(sizes.texts), sizes.length, sizes.runs)


PARTS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "many tenants": flat,
    "dedicated models": dedicated,
    "the ablation": ablation,
    "modules": modules,
    "limits of the device": device_limits,
}
