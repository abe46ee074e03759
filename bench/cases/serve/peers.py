"""HMI beside other ways to serve 1,000 tenants: uniform traffic, batches of 64 texts of 128 tokens.

All run in fp32 on one thread, in turn on the same batches. Peers that are not installed are left out.
"""

from __future__ import annotations

import copy
import importlib
import json
import logging
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from bench.cases.path.encoders import exported, one_thread
from bench.cases.serve.plan import Report, ServePlan
from bench.cases.serve.traffic import tenants_in_turn
from bench.harness.home import ROOT, Ground, Home, HomeModel, tensors_of
from bench.harness.page_cache import drop_cached
from bench.harness.report import Clock, Figure, in_turn, rotating, seconds
from hmi.config import Settings
from hmi.core import ModuleSpec
from hmi.errors import InvalidInput
from hmi.execution.choose import executor_for
from hmi.execution.packed import run_classified
from hmi.manager import Manager
from hmi.model.network.encoder import Encoder
from hmi.model.network.shape import EncoderShape
from hmi.model.sources.root import Root, load_root
from hmi.model.sources.source import find_source, load_encoder
from hmi.model.tenant.interchange import write_adapter_config
from hmi.model.tenant.modules import module_from, new_module
from hmi.stores.layout import Layout
from hmi.stores.plot.plot_meta import PlotMeta
from plot_store import Reader

TENANTS, BATCH, LENGTH = 1_000, 64, 128
SPEC = ModuleSpec(rank=8, sites=("q", "k", "v", "fi", "fo"))
"""LoRA at the sites that `adapters` also has."""
FILES = 16
"""The number of dedicated models' files, which stand for those of all tenants, and of models in memory."""
Run = Callable[[NDArray[np.int64], list[int]], object]
"""Answers a batch: ids int64 [texts, tokens], and each text's tenant."""


@dataclass(frozen=True)
class ServePeer:
    """One other way to serve the tenants."""

    name: str
    run: Run
    goal: float | None
    clock: Clock = time.process_time
    """A peer that waits for the disk is timed by the clock, the others by their CPU time."""


def steps(plan: ServePlan) -> int:
    return 2


@torch.inference_mode()
def measure(plan: ServePlan, home: Home, report: Report) -> Iterator[Figure]:
    """Yield each peer's time of a batch divided by HMI's."""
    report("peers: models")
    with closing(Manager(Settings(data=home.data, job_workers=0))) as manager:
        ground, source = Ground.of(manager, ROOT), find_source(plan.source).folder
        root = load_root(Layout(home.data).root(ROOT, PlotMeta.of(ground.plot).root_version))
        with manager.plots.reader(ground.plot.id) as reader, tempfile.TemporaryDirectory() as folder:
            teacher, tenants = load_encoder(source), min(TENANTS, plan.tenants)
            peers = [ServePeer("full_depth", _full_depth(ground, root, teacher), 1.9)]
            peers += _dedicated(teacher, Path(folder))
            split = _batch_split(source, ground)
            if split is not None:
                peers.append(ServePeer("adapters_batch_split", split, 1.9))
            # Made last, since it prepares the layers in place, from which the peers are made.
            ours = _ours(ground, root, reader, tenants)
            report(f"peers: {', '.join(peer.name for peer in peers)}")
            length = min(LENGTH, root.info.shape.positions)
            texts = root.tokenizer.encode(home.texts().of(length, 4 * BATCH), length)
            yield from _measured(plan.runs, tenants, np.array([text.ids for text in texts]), ours, peers)


def _measured(
    runs: int, tenants: int, ids: NDArray[np.int64], ours: Run, peers: list[ServePeer]
) -> Iterator[Figure]:
    draw = np.random.default_rng(0)
    turns = range(runs + 1)  # the first one warms up
    batches = [ids[draw.permutation(len(ids))[:BATCH]] for _ in turns]
    asked = [tenants_in_turn("uniform", tenants, BATCH, seed=turn).tolist() for turn in turns]

    def over_ours(peer: ServePeer, turn: int) -> float:
        given = batches[turn], asked[turn]
        ours(*given)  # so that it finds the processor's caches as in service
        mine = seconds(partial(ours, *given), peer.clock)
        return seconds(partial(peer.run, *given), peer.clock) / mine

    works = {peer.name: rotating(partial(over_ours, peer), len(turns)) for peer in peers}
    ratios = in_turn(works, runs)
    for peer in peers:
        how = "by the clock" if peer.clock is time.perf_counter else "CPU time"
        value = round(statistics.median(ratios[peer.name]), 2)
        yield Figure(f"{peer.name}_over_hplm", value, "x", peer.goal, True, runs, f"{how}; {tenants} tenants")


def _ours(ground: Ground, root: Root, reader: Reader, tenants: int) -> Run:
    """HMI's path: look-up, upper layers with each tenant's module. All modules have run once."""
    modules = [module_from(tensors_of(ground, HomeModel(f"p{i}", i, SPEC)).module) for i in range(tenants)]
    executor = executor_for(root, "fp32", wait=True)

    def run(ids: NDArray[np.int64], tenants: list[int]) -> Tensor:
        tokens, offsets = ids.reshape(-1).astype(np.int32), np.arange(len(ids) + 1) * ids.shape[1]
        rows = torch.from_numpy(reader.lookup(tokens, offsets)[0])
        positions = torch.arange(ids.shape[1]).repeat(len(ids))
        x = root.bias(rows, positions, torch.zeros_like(positions))
        return run_classified(executor, x, offsets.tolist(), [modules[t] for t in tenants])

    few = np.full((len(modules), 3), root.tokenizer.sep_id, np.int64)
    for a, b in pairwise([*range(0, len(modules), BATCH), len(modules)]):
        run(few[a:b], list(range(a, b)))
    return run


def _full_depth(ground: Ground, root: Root, teacher: Encoder) -> Run:
    """All layers on HMI's own executor, with LoRA in each: without a PLOT."""
    depth = ground.info.shape.layers
    executor = executor_for(replace(root, upper=copy.deepcopy(teacher.layers)), "fp32", wait=True)
    modules = [new_module(SPEC, ground.info.shape, depth).requires_grad_(False) for _ in range(BATCH)]

    def run(ids: NDArray[np.int64], tenants: list[int]) -> Tensor:
        flat = torch.from_numpy(ids.reshape(-1))
        x = teacher.embeddings(flat, torch.arange(ids.shape[1]).repeat(len(ids)))
        offsets = (np.arange(len(ids) + 1) * ids.shape[1]).tolist()
        return run_classified(executor, x, offsets, [modules[t % BATCH] for t in tenants])

    return run


def _dedicated(teacher: Encoder, folder: Path) -> Iterator[ServePeer]:
    """A whole ONNX Runtime model for each tenant, the least recently used swapped out.

    A model takes as much memory as some 60 modules, so only FILES have their place there. The peer that reads
    from the page cache is a bound on the time: 1,000 models would take 90 GB of it.
    """
    try:
        runtime: Any = importlib.import_module("onnxruntime")
    except ImportError:
        return
    model = exported(teacher, folder / "model.onnx")
    if model is None:
        return
    options, ready = one_thread(runtime), one_thread(runtime)
    # A deployed model is optimised once, when it is stored: a load then takes the least time.
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    runtime.InferenceSession(str(model), options)
    ready.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    files = _copies(folder / "optimised.onnx")

    def peer(name: str, from_disk: bool, goal: float | None, clock: Clock) -> ServePeer:
        @lru_cache(FILES)
        def of(tenant: int) -> Any:
            path = files[tenant % FILES]
            if from_disk:
                drop_cached(path)
            return runtime.InferenceSession(str(path), ready, providers=["CPUExecutionProvider"])

        def run(ids: NDArray[np.int64], tenants: list[int]) -> object:
            """Answer the texts of each tenant together."""
            given = [(tenant, ids[np.equal(tenants, tenant)]) for tenant in dict.fromkeys(tenants)]
            return [of(t).run(None, {"input_ids": some, "mask": np.ones_like(some)}) for t, some in given]

        return ServePeer(name, run, goal, clock)

    yield peer("dedicated_onnx_runtime_from_disk", True, 10.0, time.perf_counter)
    yield peer("dedicated_onnx_runtime_from_page_cache", False, None, time.process_time)


def _copies(first: Path) -> list[Path]:
    """Return FILES files, `first` among them, in full on the disk."""
    paths = [first, *(first.with_stem(f"{first.stem}-{i}") for i in range(1, FILES))]
    for path in paths[1:]:
        shutil.copyfile(first, path)
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file)
    return paths


def _batch_split(source: Path, ground: Ground) -> Run | None:
    """The library `adapters`: the full encoder, in which text i of a batch has LoRA i; None without it.

    The LoRAs change the upper layers, as HMI's modules do. Only as many as a batch needs are loaded, since
    loading 1,000 takes the library minutes, and makes no batch faster. The last layer computes all rows.
    """
    try:
        adapters, composition, transformers = (
            importlib.import_module(name) for name in ("adapters", "adapters.composition", "transformers")
        )
    except ImportError:
        return None
    logging.getLogger("adapters").setLevel(logging.ERROR)  # it logs a line for each adapter
    config = json.loads((source / "config.json").read_text())
    if config["model_type"] != "bert":
        raise InvalidInput("the peer `adapters` needs a root of kind bert", field="only")
    model: Any = adapters.BertAdapterModel(transformers.BertConfig(**config))
    model.bert.load_state_dict(load_file(source / "model.safetensors"), strict=False)
    names = [f"a{i}" for i in range(BATCH)]
    assert isinstance(ground.info.shape, EncoderShape)
    settings = write_adapter_config("a", SPEC, ground.info.shape, ground.info.split)["config"]
    for name in names:
        model.add_adapter(name, config=adapters.LoRAConfig.from_dict(settings))
    model.eval()

    def run(ids: NDArray[np.int64], tenants: list[int]) -> object:
        model.active_adapters = composition.BatchSplit(*names[: len(ids)], batch_sizes=[1] * len(ids))
        return model.bert(torch.from_numpy(ids)).last_hidden_state

    return run
