"""The executor, PLOT, tenants and passes that all parts of the benchmark on a CUDA device use.

Weights, rows and modules are random, since they change no time. The look-up is the store's own, over a PLOT
that covers the texts. `opened` takes any `Device`: tests and `scripts/gpu_trial.py` pass the twin, in small,
where the figures mean nothing.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from hmi_kernels.modules import ops
from numpy.typing import NDArray
from torch import Tensor, nn

from bench.harness.report import in_turn, median_ratio
from hmi.execution.batch import BatchKey, Rows
from hmi.execution.cuda import CudaExecutor, Device
from hmi.execution.cuda.choose import sound_executor
from hmi.execution.cuda.layout import Packed
from hmi.jobs.plot.ngrams import ragged
from hmi.model.network.encoder import EncoderLayer
from hmi.model.network.shape import EncoderShape
from hmi.model.tenant.modules import LowRankLayer, TenantModule, sizes_of
from hmi.modulespec import SITES
from plot_store import NgramCounter, Reader, Schema, Store

BERT_BASE = EncoderShape(30522, 768, 12, 12, 3072, 512, 2, 1e-12)
BLOCK = 64
"""Modules whose pinned memory is allocated at once."""
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
class OverlapScheme:
    """One way of overlapping: Figure 10's schemes."""

    threads: int = 2
    """With two, one retrieves while the device computes the other's batch."""
    layer_by_layer: bool = True
    """True: modules are copied while earlier layers compute. False: the thread first waits for all copies."""
    ahead: bool = True
    """True: a batch's modules are prefetched before its look-up. False: after it."""


FULL = OverlapScheme()


@contextmanager
def opened(device: Device, sizes: Sizes, precision: str, launcher: ops.Launcher | None) -> Iterator[GpuBench]:
    """Prepare an executor on `device`, a PLOT and a batch's tokens. launcher: the kernels of modules."""
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        bench = _prepare(Path(folder), device, sizes, precision, launcher)
        with bench.reader:
            yield bench
        bench.threads.shutdown()


@dataclass
class GpuBench:
    """The objects that all parts of a run use."""

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
    free: Tensor = field(default_factory=lambda: torch.empty(0))
    """[modules, size]: pinned memory for the next modules."""

    def tenants(self, count: int) -> list[TenantModule]:
        """Prepare one module for each tenant, with its own copy in pinned memory and on the device."""
        layers = range(self.sizes.upper)
        sites = {f"{i}-{site}": LowRankLayer(*both) for i in layers for site, both in self.common.items()}
        while len(self.modules) < count:
            module = TenantModule(sites).eval().requires_grad_(False)
            if self.modules:
                module.forms.of(self.executor, self._copy)
            self.executor.prepare(module)
            self.modules.append(module)
        return self.modules[:count]

    def _copy(self) -> tuple[Packed, int]:
        """The first module's numbers in memory of their own, since packing 10,000 modules takes a while."""
        like = self.executor.packed(self.modules[0])
        if not len(self.free):  # one large block after another: the host locks small ones slowly
            self.free = self.device.pinned((BLOCK, like.layout.size), self.executor.dtype)
        data, self.free = self.free[0], self.free[1:]
        made = Packed(like.layout, data.copy_(like.data))
        self.executor.slots.watch(made)
        return made, data.nbytes

    def swapped(self) -> list[TenantModule]:
        """Tenants that are more than the slots hold, so that every batch brings modules."""
        counts, slots = self.sizes.tenants, self.executor.slots.count
        return self.tenants(next((count for count in counts if count > slots), counts[-1]))


def _prepare(
    folder: Path, device: Device, sizes: Sizes, precision: str, launcher: ops.Launcher | None
) -> GpuBench:
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
    return GpuBench(sizes, device, precision, executor, _plot(folder, sizes, tokens), tokens, common)


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


def _batches(bench: GpuBench, tenants: Sequence[TenantModule]) -> list[list[TenantModule]]:
    """Return the tenants of each batch, in turn: with many tenants each batch and pass brings new ones."""
    texts, batches = bench.sizes.texts, bench.sizes.batches
    begin = next(bench.passes) * batches
    return [
        [tenants[(b * texts + i) % len(tenants)] for i in range(texts)] for b in range(begin, begin + batches)
    ]


def one_pass(bench: GpuBench, tenants: Sequence[TenantModule], pipeline: OverlapScheme) -> float:
    """Texts a second over all batches."""
    batches = _batches(bench, tenants)

    def work(first: int) -> None:
        for modules in batches[first :: pipeline.threads]:
            _batch(bench, modules, pipeline)

    return len(batches) * bench.sizes.texts / on_threads(bench, work, pipeline.threads)


def _batch(bench: GpuBench, modules: list[TenantModule], pipeline: OverlapScheme) -> None:
    executor, sizes = bench.executor, bench.sizes
    if pipeline.layer_by_layer and pipeline.ahead:
        executor.prefetch(modules)
    rows = executor.space(len(bench.tokens))
    offsets = list(range(0, len(bench.tokens) + 1, sizes.length))
    bench.reader.lookup(bench.tokens, np.array(offsets, np.int64), out=rows.numpy())
    if not (pipeline.layer_by_layer and pipeline.ahead):
        executor.prefetch(modules)
    if not pipeline.layer_by_layer:
        executor.slots.settled()
    for _ in executor.run(KEY, Rows.packed(rows, offsets), modules):
        pass


def on_threads(bench: GpuBench, work: Callable[[int], None], threads: int) -> float:
    """Seconds of `work(0)` to `work(threads - 1)`, each on a thread. Raises what they raise."""

    def run(i: int) -> None:
        with torch.inference_mode():
            work(i)

    begun = time.perf_counter()
    for done in [bench.threads.submit(run, i) for i in range(threads)]:
        done.result()
    return time.perf_counter() - begun


def compared(runs: int, above: Callable[[], float], below: Callable[[], float]) -> tuple[float, float]:
    """The medians of above / below, and of above, over runs that take turns."""
    seen = in_turn({"above": above, "below": below}, runs)
    return median_ratio(seen, "above", "below"), statistics.median(seen["above"])
