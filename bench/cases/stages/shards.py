"""Elastic shards: a root's shards, a cold root, and a root larger than memory.

Plans of submodels were measured here, too, until commit c0096136 (docs/design/0014-elastic-shards.md).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Final

import torch

from bench.cases.stages.home import SMALL, Home, named
from bench.cases.stages.plan import Plan, Report
from bench.cases.stages.shards_served import Measured, rows
from bench.harness.report import Row
from hmi.api.process.local import LocalCalls
from hmi.config import Settings
from hmi.core import ModelId
from hmi.engine.admit.bundles import Bundles
from hmi.errors import NotFound
from hmi.execution.packed import PackedExecutor, run_rows
from hmi.jobs.root.shard_answers import retrieve_batches
from hmi.stages.elastic_shards.making import make_shards
from hmi.stages.elastic_shards.store import ShardStore, open_shards
from hmi.stages.elastic_shards.weights import ShardWeights, uniform
from hmi.stores.layout import Layout

SKEW: Final = 339 / 95
"""The seconds that a full layer takes to read, divided by those that it takes to compute (STI, 2.2)."""
SCORED: Final = 400
"""Rows on which the agreement of bits is measured."""
ROWS: Final = 128
"""Rows of a timed batch."""
BATCHES: Final = 5
TIMED: Final = 3
"""Layers of a timed batch."""


def texts(plan: Plan) -> int:
    return SCORED


def measure(plan: Plan, home: Home, report: Report) -> Iterator[Row]:
    with closing(LocalCalls(Settings.from_env(None, data=home.data))) as calls:
        manager = calls.services.manager
        record = next(r for r in manager.registry.roots() if r.name == plan.root)
        folder = Layout(home.data).root(record.name, record.version)
        report.say(f"shards: making the shards of {plan.root}")
        try:
            store = open_shards(folder)
        except NotFound:
            make_shards(folder)
            store = open_shards(folder)
        bundles = Bundles(
            home.data, manager.registry, manager.plots, manager.adapters, manager.lowers, "fp32"
        )
        with closing(bundles), store:
            layer_s = seconds_of_a_layer(store)
            full = sum(store.size(0, s, 32) for s in range(store.shards))
            disk = full / (SKEW * layer_s)
            yield from _about(store, layer_s, disk)
            task = next(task for task in home.tasks if task.name == plan.tasks[0])
            model = bundles.record(ModelId(named(task.name), "large"))
            scored = retrieve_batches(bundles, model, [row.text for row in task.stream[:SCORED]])
            report.did(SCORED)
            served = Measured(home, folder, model, scored)
        small = None if plan.small is None else home.model(home.tasks[0], SMALL)
        yield from rows(manager.registry, served, small, disk, report)


def seconds_of_a_layer(store: ShardStore) -> float:
    """Measure a layer of 6 bits that is in memory, decoding included."""
    shape, x = store.info.shape, torch.randn(ROWS, store.info.shape.dim)
    refs = uniform(store, 6)[:TIMED]
    weights = ShardWeights(store, refs, [ref for layer in refs for ref in layer])
    executor, times, offsets = PackedExecutor(weights, shape), list[float](), list(range(0, ROWS + 1, 32))
    for _ in range(1 + BATCHES):
        begun = time.perf_counter()
        run_rows(executor, x, offsets, [None] * (len(offsets) - 1))
        times.append(time.perf_counter() - begun)
    weights.pipeline.close()
    return min(times[1:]) / len(refs)


def _about(store: ShardStore, layer_s: float, disk: float) -> Iterator[Row]:
    yield Row("shards_layer", round(1e3 * layer_s, 2), "ms", peer=f"{ROWS} rows, decoding included")
    peer = f"a full layer takes {SKEW:.2f} times its computation"
    yield Row("shards_disk", round(disk / 1e6, 1), "MB/s", peer=peer)
    outliers = [100 * layer.outliers for layer in store.layers]
    peer = f"least {min(outliers):.2f}"
    yield Row("shards_outliers", round(max(outliers), 2), "% of a layer's weights", peer=peer)
