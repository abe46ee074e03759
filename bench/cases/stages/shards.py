"""Elastic shards: a cold root's first answer, and a root under a limit of half its size.

Each root is served by an engine in a process of its own, which reads texts from its input, one a line, and
prints a JSON object: `bench.cases.stages.shards DATA MODEL WARM ROOT_BYTES IO_BYTES_PER_S`.

Plans of submodels were measured here, too, until commit c0096136 (docs/design/0014-elastic-shards.md).
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from bench.cases.serve.engine import by_callers, serving
from bench.cases.stages.home import SMALL, TaskHome, run_job
from bench.cases.stages.plan import ProgressReport, StagesPlan
from bench.harness.report import Figure, median_seconds
from hmi.api.process.local import LocalCalls
from hmi.config import Settings
from hmi.core import ModelId, Objective
from hmi.engine import TextRequest
from hmi.execution.packed import PackedExecutor, run_rows
from hmi.resident import peak_resident, resident
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
CALLERS: Final = 8
FIRST_GOAL, MEMORY_GOAL = 0.25, 0.5


@dataclass(frozen=True)
class Served:
    """The figures of one process."""

    first_s: float
    """Seconds from the first request, of a root that is not in memory, to its answer."""
    texts_per_s: float
    grown_bytes: int
    """The growth of the process's memory from before the root was loaded to its peak."""
    labels: list[str]
    stages: list[str]
    """The texts' setting of shards; empty for those that ran on exact weights."""


def measure(plan: StagesPlan, home: TaskHome, report: ProgressReport) -> Iterator[Figure]:
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
        yield Figure("shards_disk", round(disk / 1e6, 1), "MB/s", peer=peer)
        for name, io in (("bucket", int(disk)), ("plain", 0)):
            report.say(f"shards: the first answer of a cold root, {name} disk")
            first: dict[float | None, list[float]] = {None: [], AGREEMENT: []}
            for _ in range(REPEATS):
                for agreement, seconds in first.items():
                    _allow(registry, model, agreement)
                    seconds.append(measured(home.data, model, texts[:1], io_bytes_per_s=io).first_s)
            whole, early = statistics.median(first[None]), statistics.median(first[AGREEMENT])
            peer, label = f"{early:.2f} s, full load {whole:.2f} s", f"shards_cold_first_{name}"
            yield Figure(label, round(early / whole, 3), "of a full load", FIRST_GOAL, False, REPEATS, peer)
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
    executor, offsets = PackedExecutor(weights, shape), list(range(0, ROWS + 1, 32))
    work = partial(run_rows, executor, x, offsets, [None] * (len(offsets) - 1))
    took = median_seconds(work, BATCHES, time.perf_counter)
    weights.pipeline.close()
    return took / len(refs)


def _limited(full: Served, some: Served, exact: Served, half: int) -> Iterator[Figure]:
    """Compare processes without a limit, with one of half, and with one for a model that allows no other
    answers."""
    for name, one, goal in (("half", some, AGREEMENT), ("half_exact", exact, 1.0)):
        count, bits = len(one.labels), next((s for s in one.stages if s), "exact weights")
        grown = [f"{size >> 20} MiB" for size in (one.grown_bytes, full.grown_bytes, half)]
        peer = f"the process grows by {grown[0]}, in full by {grown[1]}; the limit is {grown[2]}"
        share = round(one.grown_bytes / full.grown_bytes, 3)
        yield Figure(f"shards_{name}_memory", share, "of full", MEMORY_GOAL, False, peer=peer)
        speed = round(one.texts_per_s / full.texts_per_s, 3)
        peer = f"{one.texts_per_s:.1f} texts/s on {bits}"
        yield Figure(f"shards_{name}_texts", speed, "of full", runs=count, peer=peer)
        same = statistics.mean(a == b for a, b in zip(one.labels, full.labels, strict=False))
        yield Figure(f"shards_{name}_agreement", round(same, 4), "of answers", goal, True, count)


def _allow(registry: Registry, model: ModelId, agreement: float | None) -> None:
    registry.change_model(
        model, lambda r: r.model_copy(update={"objective": Objective(agreement_under_load=agreement)})
    )


def measured(
    data: Path,
    model: ModelId,
    texts: Sequence[str],
    *,
    warm: ModelId | None = None,
    root_bytes: int = 0,
    io_bytes_per_s: int = 0,
) -> Served:
    """Ask a model in a new process with these settings.

    warm: a model of another root that answers first, so that the growth of memory is the root's own.
    """
    given = map(str, (data, model, warm or "", root_bytes, io_bytes_per_s))
    lines = "\n".join(" ".join(text.split()) for text in texts)
    done = subprocess.run(
        [sys.executable, "-m", __name__, *given], input=lines, capture_output=True, text=True, check=True
    )
    return Served(**json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    data, model, warm, *limits = sys.argv[1:]
    torch.set_num_threads(1)
    texts, first = sys.stdin.read().splitlines(), ModelId.parse(warm) if warm else None
    served = asyncio.run(_served(Path(data), ModelId.parse(model), first, texts, *map(int, limits)))
    print(json.dumps(asdict(served)))


async def _served(
    data: Path, model: ModelId, warm: ModelId | None, texts: list[str], root_bytes: int, io_bytes_per_s: int
) -> Served:
    limits: dict[str, Any] = {"root_bytes": root_bytes, "io_bytes_per_s": io_bytes_per_s}
    async with serving(data, warm, precision="fp32", stages="shards", **limits) as engine:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins now
        before, begun = resident().all, time.perf_counter()
        await engine.ask(model, texts[0])
        first_s = time.perf_counter() - begun
        for upper in engine.bundles._uppers.values():
            await asyncio.to_thread(upper.executor.settle)
        requests, begun = [TextRequest(model, text, provenance=True) for text in texts], time.perf_counter()
        found = await by_callers(CALLERS, requests, lambda request: engine.engine.infer([request]))
        took, grown = time.perf_counter() - begun, (peak_resident() or 0) - before
    stages = [one.provenance.stages.get("shards", "") for (one,) in found if one.provenance is not None]
    return Served(first_s, len(texts) / took, grown, [str(one.label) for (one,) in found], stages)


if __name__ == "__main__":
    main()
