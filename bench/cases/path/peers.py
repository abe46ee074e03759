"""`bench path --peers`: a tenant's model beside the full encoder in other inference engines."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from bench.cases.path.encoders import Batch, Run, peers
from bench.cases.path.run import Bench, tenants_of
from bench.harness.report import Row, seconds
from hmi.errors import InvalidInput
from hmi.execution.packed import run_classified, run_rows
from hmi.model.source import DEFAULT_PACKAGE, find_source

CASES: tuple[tuple[str, int | None, int], ...] = (
    ("128_tokens_batch_1", 128, 1),
    ("128_tokens_batch_16", 128, 16),
    ("real_lengths_batch_1", None, 1),
    ("real_lengths_batch_16", None, 16),
    ("14_tokens_batch_1", 14, 1),
    ("14_tokens_batch_16", 14, 16),
)
"""(name, tokens of a text, texts).

None for the tokens: lengths as in sentences of scientific prose, 56 on average.
"""
GOALS = {"fp32": 1.9, "bf16": 1.7, "int8": 1.7}
"""The least ratio of the fastest peer's time to HMI's, at equal precision."""
GOAL_ANY = 1.5
"""The same for the fastest peer of any precision and the precision that a server here takes by itself."""
REPEATS = 3
"""Runs in a row that are timed."""


def run(b: Bench, folder: Path, runs: int, report: Callable[[str], None]) -> Iterator[Row]:
    """Yield the median CPU time a token of the best engine over HMI's.

    All of them run in turn on the same texts, each a few times in a row.
    """
    found = list(peers(b.teacher, find_source(DEFAULT_PACKAGE).folder, folder))
    if not found:
        raise InvalidInput(
            "no peer is installed: pip install onnx onnxruntime openvino ctranslate2", field="peers"
        )
    draw, info = np.random.default_rng(7), b.root.info
    judged = info.split == info.shape.layers // 2  # the goals are for the default split
    for case, length, size in CASES:
        report(f"beside {', '.join(sorted({name.split(',')[0] for name, _, _ in found}))}: {case}")
        times: dict[str, list[float]] = {}
        for turn in range(runs + 1):
            batch = _batch(b, length, size, draw)
            arms: list[tuple[str, Run]] = [
                (f"{ours} {p}", _ours(b, p, ours == "cls")) for p in b.executors for ours in ("cls", "rows")
            ]
            arms += [(name, peer) for name, _, peer in found]
            for i in draw.permutation(len(arms)):
                name, work = arms[i]
                if turn:  # the first turn warms up
                    times.setdefault(name, []).append(_in_service(work, batch))
        median = {name: statistics.median(values) for name, values in times.items()}
        for ours in ("cls", "rows"):
            for p in b.executors:
                mine = {name: median[name] for name, precision, _ in found if precision == p}
                if mine:
                    goal = GOALS[p] if judged else None
                    yield _row(
                        mine, median[f"{ours} {p}"], f"{p}_peer_over_hplm_{p}_{ours}_{case}", goal, runs
                    )
            every = {name: median[name] for name, _, _ in found}
            at = median[f"{ours} {b.default}"]
            goal = GOAL_ANY if judged else None
            yield _row(every, at, f"peer_over_hplm_default_{ours}_{case}", goal, runs)
            if ours == "cls":
                yield Row(f"hplm_default_{case}", round(1e6 * at, 1), "µs a token", runs=runs, peer=b.default)


def _in_service(work: Run, batch: Batch) -> float:
    """Return the median CPU time a token of REPEATS runs in a row after one that does not count.

    An engine in service has the caches to itself. Here each run would find those of the engine before.
    """
    work(batch)
    return statistics.median(seconds(lambda: work(batch)) for _ in range(REPEATS)) / sum(map(len, batch))


def _row(peers_times: dict[str, float], ours: float, name: str, goal: float | None, runs: int) -> Row:
    best = min(peers_times, key=peers_times.__getitem__)
    return Row(f"best_{name}", round(peers_times[best] / ours, 2), "x", goal, True, runs, best)


def _batch(b: Bench, length: int | None, size: int, draw: np.random.Generator) -> Batch:
    flat, (first, last) = b.texts[:, 1:-1].reshape(-1), b.texts[0, [0, -1]]
    batch = []
    for _ in range(size):
        inner = (length or int(np.clip(draw.lognormal(3.9, 0.45), 8, 128))) - 2
        at = draw.integers(0, len(flat) - inner)
        batch.append([int(first), *flat[at : at + inner].tolist(), int(last)])
    return batch


def _ours(b: Bench, precision: str, cls_only: bool) -> Run:
    """Return HMI's run, from token ids to the states after the last layer."""

    def work(batch: Batch) -> object:
        tokens = np.array([token for text in batch for token in text], np.int32)
        offsets = np.cumsum([0, *map(len, batch)], dtype=np.int64)
        out = np.empty((len(tokens), b.root.dim), np.float32)
        x = torch.from_numpy(b.reader.lookup(tokens, offsets, out=out)[0])
        b.root.bias.add_packed(x, [[0] * len(text) for text in batch])
        return run(executor, x, offsets.tolist(), module * len(batch))

    executor, run = b.executors[precision], run_classified if cls_only else run_rows
    module = tenants_of(b, 1)
    return work
