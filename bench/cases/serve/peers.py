"""HMI beside other ways to serve 1,000 tenants: uniform traffic, batches of 64 texts of 128 tokens.

All run in fp32 on one thread, in turn on the same batches. Peers that are not installed are left out.
"""

from __future__ import annotations

import copy
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bench.cases.serve.home import ROOT, Home
from bench.cases.serve.peer_adapters import batch_split
from bench.cases.serve.peer_swapped import FILES, swapped
from bench.cases.serve.plan import Plan, Report
from bench.cases.serve.tenants import Ground, Model, tensors_of
from bench.cases.serve.traffic import tenants_in_turn
from bench.harness.report import Row, seconds
from hmi.config import Settings
from hmi.core import ModuleSpec
from hmi.execution.base import Executor
from hmi.execution.choose import executor_for
from hmi.execution.packed import run_classified
from hmi.manager import Manager
from hmi.model.encoder import Encoder
from hmi.model.modules import TenantModule, module_from, new_module
from hmi.model.root import Root, load_root
from hmi.model.source import find_source, load_encoder
from hmi.stores.layout import Layout
from hmi.stores.plot_meta import PlotMeta
from plot_store import Reader

TENANTS, BATCH, LENGTH = 1_000, 64, 128
SPEC = ModuleSpec(rank=8, sites=("q", "k", "v", "fi", "fo"))
"""LoRA at the sites that `adapters` also has."""
GOALS = {"dedicated": 10.0, "adapters": 1.9, "full_depth": 1.9}
Run = Callable[[NDArray[np.int64], list[int]], object]
"""Answers a batch: ids int64 [texts, tokens], and each text's tenant."""
Clock = Callable[[], float]


@dataclass(frozen=True)
class Peer:
    """One other way to serve the tenants."""

    name: str
    run: Run
    goal: float | None
    clock: Clock
    """A peer that waits for the disk is timed by the clock, the others by their CPU time."""


def steps(plan: Plan) -> int:
    return 2


@torch.inference_mode()
def measure(plan: Plan, home: Home, report: Report) -> Iterator[Row]:
    """Yield each peer's time of a batch divided by HMI's."""
    report("peers: models")
    manager = Manager(Settings(data=home.data, job_workers=0))
    try:
        ground, source = Ground.of(manager, ROOT), find_source(plan.source).folder
        root = load_root(Layout(home.data).root(ROOT, PlotMeta.of(ground.plot).root_version))
        with manager.plots.reader(ground.plot.id) as reader, tempfile.TemporaryDirectory() as folder:
            ours, peers = _arms(plan, ground, root, reader, source, Path(folder))
            report(f"peers: {', '.join(peer.name for peer in peers)}")
            yield from _measured(plan, home, root, ours, peers)
    finally:
        manager.close()


def _arms(
    plan: Plan, ground: Ground, root: Root, reader: Reader, source: Path, folder: Path
) -> tuple[Run, list[Peer]]:
    teacher, tenants = load_encoder(source), min(TENANTS, plan.tenants)
    modules = [module_from(tensors_of(ground, Model(f"p{i}", i, SPEC)).module) for i in range(tenants)]
    # The executor is made last from these layers, since it prepares them in place.
    peers = [Peer("full_depth", _full_depth(ground, root, teacher), GOALS["full_depth"], time.process_time)]
    for name, run, from_disk in swapped(teacher, folder):
        clock, goal = (time.perf_counter, GOALS["dedicated"]) if from_disk else (time.process_time, None)
        peers.append(Peer(f"dedicated_{name}", run, goal, clock))
    split = batch_split(source, SPEC, ground.info, BATCH)
    if split is not None:
        peers.append(Peer("adapters_batch_split", split, GOALS["adapters"], time.process_time))
    return _ours(executor_for(root, "fp32", wait=True), root, reader, modules), peers


def _measured(plan: Plan, home: Home, root: Root, ours: Run, peers: list[Peer]) -> Iterator[Row]:
    ids = np.array(
        [e.ids for e in root.tokenizer.encode(home.texts().of(_length(root), 4 * BATCH), _length(root))]
    )
    ratios: dict[str, list[float]] = {peer.name: [] for peer in peers}
    tenants, draw = min(TENANTS, plan.tenants), np.random.default_rng(0)
    for turn in range(plan.runs + 1):
        batch = ids[draw.permutation(len(ids))[:BATCH]]
        asked = tenants_in_turn("uniform", tenants, BATCH, seed=turn).tolist()
        for peer in (peers[i] for i in draw.permutation(len(peers))):
            ratio = _ratio(ours, peer, batch, asked)
            if turn:  # the first turn warms up
                ratios[peer.name].append(ratio)
    for peer in peers:
        value = round(statistics.median(ratios[peer.name]), 2)
        yield Row(f"{peer.name}_over_hplm", value, "x", peer.goal, True, plan.runs, _about(peer, tenants))


def _ratio(ours: Run, peer: Peer, batch: NDArray[np.int64], asked: list[int]) -> float:
    ours(batch, asked)  # so that it finds the processor's caches as in service
    mine = seconds(lambda: ours(batch, asked), peer.clock)
    return seconds(lambda: peer.run(batch, asked), peer.clock) / mine


def _about(peer: Peer, tenants: int) -> str:
    how = "by the clock" if peer.clock is time.perf_counter else "CPU time"
    kept = f", {FILES} in memory" if peer.name.startswith("dedicated") else ""
    return f"{how}; {tenants} tenants{kept}"


def _length(root: Root) -> int:
    return min(LENGTH, root.info.shape.positions)


def _ours(executor: Executor, root: Root, reader: Reader, modules: list[TenantModule]) -> Run:
    """HMI's path: look-up, upper layers with each tenant's module. All modules have run once."""

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
