"""`bench path --peers`: a tenant's model beside the full encoder in other inference engines."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from bench.cases.path.encoders import Batch, Run, peers
from bench.cases.path.run import PathBench, ours, tenants_of
from bench.harness.home import real_length
from bench.harness.report import Figure, in_turn, rotating, seconds
from hmi.errors import InvalidInput
from hmi.model.sources.source import DEFAULT_PACKAGE, find_source

CASES: tuple[tuple[str, int | None, int], ...] = (
    ("128_tokens_batch_1", 128, 1),
    ("128_tokens_batch_16", 128, 16),
    ("real_lengths_batch_1", None, 1),
    ("real_lengths_batch_16", None, 16),
    ("14_tokens_batch_1", 14, 1),
    ("14_tokens_batch_16", 14, 16),
)
"""(name, tokens of a text, texts). None for the tokens: drawn by `real_length`."""
GOALS = {"fp32": 1.9, "bf16": 1.7, "int8": 1.7}
"""The least ratio of the fastest peer's time to HMI's, at equal precision."""
GOAL_ANY = 1.5
"""The same for the fastest peer of any precision and the precision that a server here takes by itself."""
REPEATS = 3
"""Runs in a row that are timed."""


def measure(b: PathBench, folder: Path, runs: int, report: Callable[[str], None]) -> Iterator[Figure]:
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
    precision_of: dict[str, str] = {name: precision for name, precision, _ in found}
    for case, length, size in CASES:
        report(f"beside {', '.join(sorted({name.split(',')[0] for name in precision_of}))}: {case}")
        batches = [_batch(b, length, size, draw) for _ in range(runs + 1)]
        tenants = tenants_of(b, 1) * size
        arms = {
            f"{rows} {p}": ours(b, executor, tenants, cls_only=rows == "cls")
            for p, executor in b.executors.items()
            for rows in ("cls", "rows")
        }
        arms |= {name: peer for name, _, peer in found}
        works = {name: rotating(_in_service(work, batches), len(batches)) for name, work in arms.items()}
        median = {name: statistics.median(times) for name, times in in_turn(works, runs).items()}
        for rows in ("cls", "rows"):
            for p in (*b.executors, "default"):
                mine = f"{rows} {b.default if p == 'default' else p}"
                theirs = [name for name, of in precision_of.items() if p in ("default", of)]
                if theirs:
                    goal = (GOAL_ANY if p == "default" else GOALS[p]) if judged else None
                    best = min(theirs, key=median.__getitem__)
                    name = f"best_{'' if p == 'default' else f'{p}_'}peer_over_hplm_{p}_{rows}_{case}"
                    yield Figure(name, median[best] / median[mine], "x", goal, True, runs, best)
        default = 1e6 * median[f"cls {b.default}"]
        yield Figure(f"hplm_default_{case}", default, "µs a token", runs=runs, peer=b.default)


def _in_service(work: Run, batches: list[Batch]) -> Callable[[int], float]:
    """Return a function of a batch's number: the median CPU time a token of REPEATS runs in a row.

    A run before them does not count: an engine in service has the caches to itself, and here each would find
    those of the engine before.
    """

    def timed(i: int) -> float:
        work(batches[i])
        took = statistics.median(seconds(partial(work, batches[i])) for _ in range(REPEATS))
        return took / sum(map(len, batches[i]))

    return timed


def _batch(b: PathBench, length: int | None, size: int, draw: np.random.Generator) -> Batch:
    flat, (first, last) = b.texts[:, 1:-1].reshape(-1), b.texts[0, [0, -1]]
    batch = []
    for _ in range(size):
        inner = (length or real_length(draw)) - 2
        at = draw.integers(0, len(flat) - inner)
        batch.append([int(first), *flat[at : at + inner].tolist(), int(last)])
    return batch
