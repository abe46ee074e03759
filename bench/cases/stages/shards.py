"""Elastic shards: accuracy behind a slow disk, the pipeline's trace, a cold root, a root larger than
memory."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch

from bench.cases.stages.home import SMALL, Home, named
from bench.cases.stages.plan import Plan, Report
from bench.cases.stages.shard_arms import (
    ARMS,
    PIPELINED,
    SKEW,
    WIDTHS,
    Lab,
    Run,
    Submodel,
    best,
    layers_of,
    upgraded,
    widths_of,
)
from bench.cases.stages.shards_served import Measured, rows
from bench.harness.report import Row
from hmi.api.local import LocalCalls
from hmi.config import Settings
from hmi.core import ModelId
from hmi.engine.bundles import Bundles
from hmi.errors import NotFound
from hmi.execution.packed import PackedExecutor, run_rows
from hmi.jobs.shard_answers import Asked, asked, probe_of
from hmi.stages.elastic_shards.importance import profile
from hmi.stages.elastic_shards.io_budget import IoBudget
from hmi.stages.elastic_shards.making import make_shards
from hmi.stages.elastic_shards.plan import Shard, Speed
from hmi.stages.elastic_shards.store import ShardStore, open_shards
from hmi.stages.elastic_shards.weights import ShardWeights, uniform
from hmi.stores.layout import Layout

TARGETS: Final = (2.5, 4.5, 7.5)
"""Target times, in times of one full layer that is in memory."""
BUFFER: Final = 0.03
"""The preload buffer, as a fraction of the full root's bytes."""
SCORED, PROFILED, PROBED = 400, 200, 48
"""Rows of each task that are scored, that submodels are chosen on, and that shards' importance is found
on."""
ROWS: Final = 128
"""Rows of a timed batch."""
BATCHES: Final = 5
TIMED: Final = 3
"""Layers of a timed submodel."""
EXTRA: Final = (0.1, 0.3, 0.6)
"""Further IO of the comparison of importance with chance: the fraction of the shards that it can raise from 2
to 6 bits. Those of STI's table 7 are .09, .45 and .9 of 15 shards."""
DRAWS: Final = 3
WITHIN, OVER_PIPELINES, OVER_CHANCE, MEMORY_GOAL = -1.0, 7.0, 8.0, 5.0
STALL_GOAL: Final = 0.02


def texts(plan: Plan) -> int:
    arms = len(TARGETS) * len(ARMS)
    return len(plan.tasks) * (len(WIDTHS) * PROFILED + (arms + len(EXTRA) * (1 + DRAWS)) * SCORED)


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
            speed = measured_speed(store)
            tasks = [_task(bundles, home, store, name, report) for name in plan.tasks]
            lab = Lab(store, speed, int(BUFFER * store.full_bytes), tasks[0].depths)
            yield from _about(lab)
            yield from _compared(lab, tasks, report)
            yield from _chosen(lab, tasks, report)
            yield from _traced(lab, tasks[0], report)
            model = bundles.record(ModelId(named(plan.tasks[0]), "large"))
            served = Measured(home, folder, model, tasks[0].scored)
        small = None if plan.small is None else home.model(home.tasks[0], SMALL)
        yield from rows(manager.registry, served, small, speed.bytes_per_s, report)


def measured_speed(store: ShardStore) -> Speed:
    """Measure layers of the widths that are compared, decoding included, and set the disk to SKEW.

    Between two widths, the time is taken to be a straight line's.
    """
    shape, x = store.info.shape, torch.randn(ROWS, store.info.shape.dim)
    offsets, found = list(range(0, ROWS + 1, 32)), {}
    for width in widths_of(store):
        refs = [refs[:width] for refs in uniform(store, 6)][:TIMED]
        weights = ShardWeights(store, refs, [ref for layer in refs for ref in layer])
        executor, times = PackedExecutor(weights, shape), []
        for _ in range(1 + BATCHES):
            begun = time.perf_counter()
            run_rows(executor, x, offsets, [None] * (len(offsets) - 1))
            times.append(time.perf_counter() - begun)
        found[width] = min(times[1:]) / len(refs)
        weights.pipeline.close()
    known = np.maximum.accumulate(list(found.values()))
    layer_s = np.interp(range(1, store.shards + 1), list(found), known).tolist()
    full = sum(store.size(0, s, 32) for s in range(store.shards))
    return Speed(full / (SKEW * layer_s[-1]), tuple(layer_s))


@dataclass(frozen=True)
class Task:
    """One task's rows, and what was found out about its model on others."""

    scored: Asked
    profile: Mapping[Submodel, float]
    """The accuracy of each submodel in full precision."""
    importance: Mapping[Shard, float]
    known: dict[frozenset[tuple[Shard, int]], float] = field(default_factory=dict)
    """The accuracies that have been found."""

    @property
    def depths(self) -> tuple[int, ...]:
        return tuple(sorted({depth for depth, _ in self.profile}))

    def accuracy(self, store: ShardStore, bits: Mapping[Shard, int]) -> float:
        """Return the percentage of right labels under these shards. A ramp answers if they are not of all
        layers."""
        key = frozenset(bits.items())
        if key not in self.known:
            self.known[key] = self._accuracy(store, bits)
        return self.known[key]

    def _accuracy(self, store: ShardStore, bits: Mapping[Shard, int]) -> float:
        layers = layers_of(bits)
        depth, width = len(layers), len(layers[0])
        if depth < len(store.layers):  # a ramp reads the rows before a layer that is not run
            layers.append([(depth, s, 2) for s in range(width)])
        weights = ShardWeights(store, layers)
        found = self.scored.answers(weights, only=depth)[depth]
        weights.pipeline.close()
        return 100 * float((found == self.scored.gold).mean())


def _task(bundles: Bundles, home: Home, store: ShardStore, name: str, report: Report) -> Task:
    task = next(task for task in home.tasks if task.name == name)
    record = bundles.record(ModelId(named(name), "large"))
    report.say(f"shards: profiling {name}")
    known = asked(bundles, record, name, task.profiled[:PROFILED])
    found: dict[Submodel, float] = {}
    for width in widths_of(store):
        weights = ShardWeights(store, [refs[:width] for refs in uniform(store, 32)])
        for depth, labels in known.answers(weights).items():
            found[depth, width] = float((labels == known.gold).mean())
        weights.pipeline.close()
        report.did(PROFILED)
    probe = probe_of(asked(bundles, record, name, task.profiled[PROFILED : PROFILED + PROBED]))
    importance = profile(store, [probe], lambda done, total: None)
    return Task(asked(bundles, record, name, task.stream[:SCORED]), found, importance)


def _about(lab: Lab) -> Iterator[Row]:
    yield Row(
        "shards_layer", round(1e3 * lab.speed.layer_s[-1], 2), "ms", peer=f"{ROWS} rows, decoding included"
    )
    yield Row(
        "shards_disk",
        round(lab.speed.bytes_per_s / 1e6, 1),
        "MB/s",
        peer=f"a full layer takes {SKEW:.2f} times its computation",
    )
    outliers = [100 * layer.outliers for layer in lab.store.layers]
    yield Row(
        "shards_outliers",
        round(max(outliers), 2),
        "% of a layer's weights",
        peer=f"least {min(outliers):.2f}",
    )


def _compared(lab: Lab, tasks: list[Task], report: Report) -> Iterator[Row]:
    """Accuracies by arm, target and task."""
    differences: dict[str, list[float]] = {arm: [] for arm in ARMS if arm != "ours"}
    held = 0
    for task in tasks:
        for times in TARGETS:
            target_s, ours = times * lab.speed.layer_s[-1], 0.0
            for name, way in ARMS.items():
                report.say(f"shards: {task.scored.name} in {times} layers' time, {name}")
                run = best(way, lab, target_s, task.profile, task.importance)
                chance = 100 * max(float((task.scored.gold == g).mean()) for g in set(task.scored.gold))
                points = chance if run is None else task.accuracy(lab.store, run.bits)
                report.did(SCORED)
                if name == "ours":
                    ours, held = points, max(held, 0 if run is None else run.held_bytes)
                else:
                    differences[name].append(ours - points)
                label = f"shards_{task.scored.name}_{times}_{name}"
                yield Row(label, round(points, 2), "% right", runs=len(task.scored.gold), peer=_told(run))
    count = len(tasks) * len(TARGETS)
    within = statistics.mean(differences["preload"])
    yield Row("shards_over_preload", round(within, 2), "points, mean", WITHIN, True, count)
    yield Row("shards_over_preload_worst", round(min(differences["preload"]), 2), "points", runs=count)
    yield Row(
        "shards_held",
        round(100 * held / lab.store.full_bytes, 2),
        "% of preload's bytes",
        MEMORY_GOAL,
        False,
        count,
    )
    pipelined = statistics.mean(x for arm in PIPELINED for x in differences[arm])
    yield Row("shards_over_pipelining", round(pipelined, 2), "points, mean", OVER_PIPELINES, True, 3 * count)
    for arm in ("load_and_execute", *PIPELINED):
        yield Row(
            f"shards_over_{arm}", round(statistics.mean(differences[arm]), 2), "points, mean", runs=count
        )


def _told(run: Run | None) -> str:
    if run is None:
        return "no submodel fits: the most frequent label"
    layers = layers_of(run.bits)
    widths = sorted(run.bits.values())
    return f"{len(layers)}x{len(layers[0])} of {widths[0]} to {widths[-1]} bits"


def _chosen(lab: Lab, tasks: list[Task], report: Report) -> Iterator[Row]:
    """Importance against chance: a submodel of 2 bits with further IO for shards of 6 bits."""
    store, gains = lab.store, list[float]()
    every = [(i, s) for i in range(len(store.layers)) for s in range(store.shards)]
    for task in tasks:
        order = sorted(every, key=lambda shard: -task.importance[shard])
        for part in EXTRA:
            report.say(f"shards: {task.scored.name}, importance and chance")
            room = int(part * sum(store.size(*s, 6) - store.size(*s, 2) for s in every))
            ours = task.accuracy(store, upgraded(store, order, room))
            drawn = []
            for seed in range(DRAWS):
                some = random.Random(seed).sample(every, len(every))
                drawn.append(task.accuracy(store, upgraded(store, some, room)))
            report.did(SCORED * (1 + DRAWS))
            gains.append(ours - statistics.mean(drawn))
            label, peer = (
                f"shards_{task.scored.name}_importance_{part}",
                f"chance {statistics.mean(drawn):.2f}",
            )
            yield Row(label, round(ours, 2), "% right", runs=DRAWS, peer=peer)
    yield Row(
        "shards_over_chance", round(statistics.mean(gains), 2), "points, mean", OVER_CHANCE, True, len(gains)
    )


def _traced(lab: Lab, task: Task, report: Report) -> Iterator[Row]:
    """The real pipeline behind a token-bucket disk: bytes, and waits that the plan does not have."""
    store, unplanned, differ, slower = lab.store, list[float](), 0, list[float]()
    x = torch.randn(ROWS, store.info.shape.dim)
    offsets = list(range(0, ROWS + 1, 32))
    for times in TARGETS:
        report.say(f"shards: the pipeline in {times} layers' time")
        target_s = times * lab.speed.layer_s[-1]
        run = best(ARMS["ours"], lab, target_s, task.profile, task.importance)
        assert run is not None
        assert run.plan is not None
        budget = IoBudget(lab.speed.bytes_per_s)
        weights = ShardWeights.planned(store, run.plan, budget=budget)
        executor = PackedExecutor(weights, store.info.shape)
        for i in range(1 + BATCHES):
            begun = time.perf_counter()
            run_rows(executor, x, offsets, [None] * (len(offsets) - 1))
            took = time.perf_counter() - begun
            trace = weights.traces[-1]
            if i:
                planned = target_s - sum(run.plan.compute_s)
                unplanned.append(max(0.0, trace.stall_s - planned) / target_s)
                differ += trace.bytes != run.plan.streamed_bytes
                slower.append(took / target_s)
        weights.pipeline.close()
    count, peer = len(unplanned), f"median time {statistics.median(slower):.3f} of the target"
    yield Row(
        "shards_unplanned_stall", round(max(unplanned), 4), "of the target", STALL_GOAL, False, count, peer
    )
    yield Row("shards_bytes_differ", differ, "batches", 0, False, count, "bytes read, bytes planned")
