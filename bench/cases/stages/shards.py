"""Elastic shards: a cold root's first answer, and a root under a limit of half its size.

Plans of submodels were measured here, too, until commit c0096136 (docs/design/0014-elastic-shards.md).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Final

import torch

from bench.cases.stages.home import SMALL, Home, run_job
from bench.cases.stages.plan import Plan, Report
from bench.cases.stages.shard_memory import Served, measured
from bench.harness.report import Row
from hmi.api.process.local import LocalCalls
from hmi.config import Settings
from hmi.core import ModelId, Objective
from hmi.execution.packed import PackedExecutor, run_rows
from hmi.stages.elastic_shards.store import ShardStore, open_shards
from hmi.stages.elastic_shards.weights import ShardWeights, uniform
from hmi.stores.layout import Layout
from hmi.stores.records.registry import Registry

SKEW: Final = 339 / 95
"""The seconds that a full layer takes to read, divided by those that it takes to compute (STI, 2.2)."""
SCORED: Final = 400
"""Texts by which the job measures the agreement of bits."""
ROWS: Final = 128
"""Rows of a timed batch."""
BATCHES: Final = 5
TIMED: Final = 3
"""Layers of a timed batch."""
AGREEMENT: Final = 0.9
"""The fraction of answers that must equal the full model's, which the measured model allows under load."""
TEXTS, FEW = 150, 20
REPEATS: Final = 3
FIRST_GOAL, MEMORY_GOAL = 0.25, 0.5


def measure(plan: Plan, home: Home, report: Report) -> Iterator[Row]:
    """Make the root's shards by their job, and ask a model behind an emulated disk and without it."""
    task = home.tasks[-1]  # the job measures the models that were published last
    model, texts = home.model(task), task.asked[:TEXTS]
    with closing(LocalCalls(Settings.from_env(None, data=home.data))) as calls:
        report.say(f"shards: making the shards of {plan.root}, and the agreement of their bits")
        scored = "\n".join(" ".join(text.split()) for text in task.asked[:SCORED])
        run_job(calls, f"/manage/roots/{plan.root}/shards", {}, text=scored)
        registry = calls.services.manager.registry
        with open_shards(Layout(home.data).root(plan.root, registry.root(plan.root).version)) as store:
            layer = sum(store.size(0, s, 32) for s in range(store.shards))
            disk, half = layer / (SKEW * seconds_of_a_layer(store)), store.full_bytes // 2
        peer = f"a full layer takes {SKEW:.2f} times its computation"
        yield Row("shards_disk", round(disk / 1e6, 1), "MB/s", peer=peer)
        for name, io in (("bucket", int(disk)), ("plain", 0)):
            report.say(f"shards: the first answer of a cold root, {name} disk")
            first: dict[float | None, list[float]] = {None: [], AGREEMENT: []}
            for _ in range(REPEATS):
                for agreement, seconds in first.items():
                    _allow(registry, model, agreement)
                    seconds.append(measured(home.data, model, texts[:1], io_bytes_per_s=io).first_s)
            whole, early = statistics.median(first[None]), statistics.median(first[AGREEMENT])
            peer, label = f"{early:.2f} s, full load {whole:.2f} s", f"shards_cold_first_{name}"
            yield Row(label, round(early / whole, 3), "of a full load", FIRST_GOAL, False, REPEATS, peer)
        report.say("shards: half of the memory")
        warm = None if plan.small is None else home.model(home.tasks[0], SMALL)
        served = partial(measured, home.data, model, warm=warm)
        _allow(registry, model, None)
        full, exact = served(texts), served(texts[:FEW], root_bytes=half)
        _allow(registry, model, AGREEMENT)
        yield from _limited(full, served(texts, root_bytes=half), exact, half)


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


def _limited(full: Served, some: Served, exact: Served, half: int) -> Iterator[Row]:
    """Compare processes without a limit, with one of half, and with one for a model that allows no other
    answers."""
    for name, one, goal in (("half", some, AGREEMENT), ("half_exact", exact, 1.0)):
        count, bits = len(one.labels), next((s for s in one.stages if s), "exact weights")
        grown = [f"{size >> 20} MiB" for size in (one.grown_bytes, full.grown_bytes, half)]
        peer = f"the process grows by {grown[0]}, in full by {grown[1]}; the limit is {grown[2]}"
        share = round(one.grown_bytes / full.grown_bytes, 3)
        yield Row(f"shards_{name}_memory", share, "of full", MEMORY_GOAL, False, peer=peer)
        speed = round(one.texts_per_s / full.texts_per_s, 3)
        peer = f"{one.texts_per_s:.1f} texts/s on {bits}"
        yield Row(f"shards_{name}_texts", speed, "of full", runs=count, peer=peer)
        same = statistics.mean(a == b for a, b in zip(one.labels, full.labels, strict=False))
        yield Row(f"shards_{name}_agreement", round(same, 4), "of answers", goal, True, count)


def _allow(registry: Registry, model: ModelId, agreement: float | None) -> None:
    registry.change_model(
        model, lambda r: r.model_copy(update={"objective": Objective(agreement_under_load=agreement)})
    )
