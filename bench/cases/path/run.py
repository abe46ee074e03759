"""`bench path`: the time saved by looking the lower layers up, on the default root with one thread."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from bench.cases.path.encoders import Batch, Run
from bench.cases.store.data import Texts, distinct, trigrams
from bench.harness.home import installed_text
from bench.harness.report import Figure, median_seconds, paired_ratio
from hmi.core import ModuleSpec
from hmi.execution.base import Executor
from hmi.execution.choose import executor_for
from hmi.execution.packed import PackedExecutor, run_classified, run_rows
from hmi.execution.precision import available
from hmi.jobs.plot.write_plot import schema_of
from hmi.model.network.encoder import Encoder
from hmi.model.sources.locality import apply_locality, shipped_locality
from hmi.model.sources.lower import LocalLower
from hmi.model.sources.root import Root, RootInfo, split_encoder
from hmi.model.sources.source import DEFAULT_PACKAGE, find_source, load_encoder
from hmi.model.tenant.modules import TenantModule, new_module
from hmi.model.text.tokenizer import Tokenizer
from hmi.modulespec import Kind
from plot_store import Reader, Store

LENGTH = 128
TEXTS = 64
WORDS = 40_000
"""More than enough for these texts."""

Modules = list[TenantModule | None]


@dataclass(frozen=True)
class PathBench:
    """The default root, its source model, texts of LENGTH tokens, and a PLOT that covers these texts."""

    teacher: Encoder
    root: Root
    executors: dict[str, Executor]
    """By precision: the executors of the root that this machine has."""
    default: str
    """The precision that a server here takes by itself."""
    reader: Reader
    texts: Texts


Measure = Callable[[PathBench, Path, int, Callable[[str], None]], Iterator[Figure]]


def run(
    runs: int, report: Callable[[str], None], measures: Sequence[Measure], split: int | None
) -> Iterator[Figure]:
    """Prepare the bench and run `measures` on it.

    `report` gets a line as each step begins. split: the layers that are looked up; None: half.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        report("building a PLOT that covers the texts")
        bench = _prepare(Path(folder), split)
        with bench.reader, torch.inference_mode():
            for wanted in measures:
                yield from wanted(bench, Path(folder), runs, report)


def measure(b: PathBench, _folder: Path, runs: int, report: Callable[[str], None]) -> Iterator[Figure]:
    """Yield the full encoder's time over the path's, the cost of modules, and that of the look-up."""
    # Packed torch in fp32, as the full encoder runs, and the executor that a server here takes.
    packed, default = PackedExecutor(b.root.upper, b.root.info.shape), b.executors[b.default]
    batch: Batch = b.texts[:16].tolist()
    peer = "the source model in full, same torch, unpadded"
    for size in (1, 16):
        report(f"half the layers, batch {size}")
        some, tenants = batch[:size], tenants_of(b, size)
        cases: list[tuple[str, Modules, bool, float]] = [
            ("half_without_module", [None] * size, False, 1.9),
            ("hplm_all_rows", tenants, False, 1.9),
            ("hplm_cls", tenants, True, 2.2),
        ]
        for name, modules, cls_only, goal in cases:
            half = partial(ours(b, packed, modules, cls_only=cls_only), some)
            value = paired_ratio(_full(b, size), half, runs)
            yield Figure(f"full_over_{name}_batch_{size}", value, "x", goal, True, runs, peer)
    report("16 tenants in one batch")
    many = partial(ours(b, default, tenants_of(b, 16)), batch)
    value = paired_ratio(many, partial(ours(b, default, tenants_of(b, 1) * 16), batch), runs)
    yield Figure("sixteen_tenants_over_one", value, "x", 1.15, False, runs, "one tenant's batch of 16")
    none = partial(ours(b, default, [None] * 16, cls_only=True), batch)
    for kind in get_args(Kind):
        report(f"modules of kind {kind}")
        tenants = tenants_of(b, 16, ModuleSpec(kind=kind))
        value = paired_ratio(partial(ours(b, default, tenants, cls_only=True), batch), none, runs)
        name = f"module_{kind.replace('+', '_and_')}_over_none_batch_16"
        yield Figure(name, value, "x", runs=runs, peer="no module")
    report("look-up")
    share = median_seconds(_look_up(b, 16), runs) / median_seconds(many, runs)
    yield Figure("lookup_share_of_batch_16", share, "of the time", 0.03, False, runs)
    microseconds = median_seconds(_look_up(b, 1), runs * 20) * 1e6
    yield Figure("lookup_one_text_of_128", microseconds, "µs", 60.0, False, runs * 20)


def _prepare(folder: Path, wanted: int | None) -> PathBench:
    source = find_source(DEFAULT_PACKAGE)
    teacher, tokenizer = load_encoder(source.folder), Tokenizer(source.folder / "tokenizer.json")
    split = teacher.shape.layers // 2 if wanted is None else wanted
    parts = split_encoder(teacher, split, tokenizer.cls_id, 3 if split else 1)
    weights = shipped_locality(source.sha256, split)
    if weights is not None:  # without them rows have other values, and the time is the same
        apply_locality(weights, parts)
    lower, upper, bias = parts
    for part in parts:
        part.eval().requires_grad_(False)
    info = RootInfo(name="bench", version="0", source={}, shape=teacher.shape, split=split, created="")
    root = Root(info, upper, bias, tokenizer)
    executors: dict[str, Executor] = {}
    for precision in available():
        own = replace(root, upper=copy.deepcopy(root.upper))  # an executor prepares the layers in place
        executors[precision] = executor_for(own, precision, wait=True)
    default = executor_for(root, wait=True).precision
    body, words = LENGTH - 2, islice((w for text in installed_text() for w in text.split()), WORDS)
    ids = tokenizer.encode([" ".join(words)], 1 << 30)[0].ids[1:-1]
    texts = [[tokenizer.cls_id, *ids[i * body : (i + 1) * body], tokenizer.sep_id] for i in range(TEXTS)]
    assert len(texts[-1]) == LENGTH, "too little text"
    found = np.array(texts, np.int32)
    return PathBench(teacher, root, executors, default, _plot(folder, lower, found), found)


def _plot(folder: Path, lower: LocalLower, texts: Texts) -> Reader:
    """Store what the lower layers give for every n-gram of the texts."""
    store, n = Store.open(folder / "plots", create=True), lower.n
    ngrams = distinct(trigrams(texts) if n == 3 else texts.reshape(-1, 1).astype(np.uint32))
    with store.writer("bench", schema=schema_of(lower), build="bench") as writer, torch.inference_mode():
        for at in range(0, len(ngrams), 1024):
            some = ngrams[at : at + 1024]
            writer.add(n, some, lower.entries(torch.from_numpy(some.astype(np.int64))).numpy())
        writer.publish()
    return store.reader("bench")


def tenants_of(b: PathBench, count: int, spec: ModuleSpec | None = None) -> Modules:
    spec = spec or ModuleSpec()
    return [
        new_module(spec, b.root.info.shape, len(b.root.upper)).requires_grad_(False) for _ in range(count)
    ]


def _full(b: PathBench, size: int) -> Callable[[], Tensor]:
    ids = torch.from_numpy(b.texts[:size].astype(np.int64))
    mask = torch.ones_like(ids, dtype=torch.bool)
    return lambda: b.teacher(ids, mask)


def _look_up(b: PathBench, size: int) -> Callable[[], object]:
    tokens = b.texts[:size].reshape(-1).copy()
    offsets = np.arange(size + 1, dtype=np.int64) * LENGTH
    out = np.empty((len(tokens), b.root.dim), np.float32)
    return lambda: b.reader.lookup(tokens, offsets, out=out)


def ours(b: PathBench, executor: Executor, tenants: Modules, *, cls_only: bool = False) -> Run:
    """Return HMI's run, from the token ids of a text for each tenant to the states after the last layer."""
    run = run_classified if cls_only else run_rows

    def work(batch: Batch) -> Tensor:
        tokens = np.array([token for text in batch for token in text], np.int32)
        offsets = np.cumsum([0, *map(len, batch)], dtype=np.int64)
        x = torch.from_numpy(b.reader.lookup(tokens, offsets)[0])
        b.root.bias.add_packed(x, [[0] * len(text) for text in batch])
        return run(executor, x, offsets.tolist(), tenants)

    return work
