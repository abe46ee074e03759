"""`bench store`: the PLOT store beside this machine's limits and other stores, measured in one run."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.cases.store import appends, deep, domains, live, peers, reading, remote, walks, writing
from bench.cases.store.chain import Chain, Tables, choose
from bench.cases.store.data import corpus_sample, zipf_sample
from bench.harness.report import Figure, known
from hmi.errors import StorageFull
from hmi.model.memory import memory_left

SECTIONS = (
    "lookup",
    "peers",
    "cold",
    "index",
    "bulk",
    "publish",
    "deep",
    "appends",
    "live",
    "walks",
    "domains",
    "remote",
)
COPIES = {"lookup": 1.0, "peers": 3.5, "cold": 0.0}
"""Sections that read the chain, and their rows in memory in multiples of the chain's bytes."""
BULK_KEYS = 2_000_000
"""The greatest number of keys of a bulk build, which is repeated; more would only take longer."""
DEEP_KEYS = 400_000
"""The greatest number of keys of a deep chain's root."""
DOMAINS = 10_000
"""The greatest number of domains that are open together."""
APPENDS = 1_400
"""The greatest number of appends to one ref."""
MEMORY_SHARE = 0.8
"""The fraction of free memory that rows may take. With more, they would be read from the disk."""


@dataclass(frozen=True)
class StorePlan:
    """The measurements of a run, and how often each is repeated."""

    keys: int = 1_000_000
    dims: tuple[int, ...] = (384, 768)
    runs: int = 101
    """Pairs of look-ups for each ratio."""
    long_runs: int = 5
    """Pairs for each ratio of operations that take seconds."""
    phase_s: float = 0.5
    phases: int = 9
    sections: tuple[str, ...] = SECTIONS
    corpus: Path | None = None
    place: str | None = None
    """The place of section remote; None: a folder."""


QUICK = StorePlan(keys=20_000, dims=(384,), runs=15, long_runs=2, phase_s=0.15, phases=2)


def run(plan: StorePlan, data: Path | None, report: Callable[[str], None]) -> Iterator[Figure]:
    """Measure in a new folder below `data` (None: the system's temporary folder), then remove it.

    `report` gets a line as each step begins. Raises InvalidInput, StorageFull.
    """
    known(plan.sections, SECTIONS)
    if data is not None:
        data.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-store-", dir=data) as folder:
        yield from _measured(plan, Path(folder), report)


def _measured(plan: StorePlan, folder: Path, report: Callable[[str], None]) -> Iterator[Figure]:
    report("texts and their n-grams")
    sample = zipf_sample(plan.keys) if plan.corpus is None else corpus_sample(plan.corpus, plan.keys)
    tables = choose(sample)
    yield Figure("trigrams_stored", len(tables.root), "keys", peer=f"text: {sample.source}")
    if "index" in plan.sections:
        report("index build")
        yield from writing.index(tables.root, plan.long_runs)
    for dim in plan.dims:
        need, free = 2 * tables.bytes(dim), shutil.disk_usage(folder).free
        if need > free:
            raise StorageFull(f"{need / 1e9:.1f} GB are needed and {free / 1e9:.1f} GB free: use --data")
        if "bulk" in plan.sections:
            report(f"bulk build, d = {dim}")
            yield from writing.bulk(folder / "bulk", tables.root[:BULK_KEYS], dim, plan.long_runs)
        if set(plan.sections) & set(COPIES):
            yield from _of_a_chain(plan, folder / f"chain-{dim}", tables, dim, report)
    if "publish" in plan.sections:
        report("publications")
        yield from writing.publications(folder / "publish")
    if "deep" in plan.sections:
        report("chains of many versions")
        yield from deep.measure(folder / "deep", min(plan.keys, DEEP_KEYS), plan.runs)
    if "appends" in plan.sections:
        report("many appends")
        yield from appends.measure(folder / "appends", min(plan.keys // 50, APPENDS), plan.runs)
    if "walks" in plan.sections:
        report("a catalogue of many refs")
        yield from walks.measure(folder / "walks", plan.keys, plan.long_runs)
    if "domains" in plan.sections:
        report("many domains")
        yield from domains.measure(folder / "domains", max(200, min(plan.keys // 100, DOMAINS)), plan.runs)
    if "remote" in plan.sections:
        report("pushes, pulls and collections")
        many = max(100, min(plan.keys // 100, DOMAINS))
        yield from remote.measure(folder / "remote", plan.place, plan.keys, many, plan.long_runs)
    if "live" in plan.sections:
        report("a reader beside publications")
        yield from live.measure(folder / "live", plan.phase_s, plan.phases)


def _of_a_chain(
    plan: StorePlan, folder: Path, tables: Tables, dim: int, report: Callable[[str], None]
) -> Iterator[Figure]:
    report(f"building a chain of four versions, d = {dim}")
    room = MEMORY_SHARE * memory_left()
    chain = Chain(folder, tables, dim)
    measures: dict[str, Callable[[], Iterator[Figure]]] = {
        "lookup": lambda: reading.measure(chain, plan.runs),
        "peers": lambda: peers.measure(chain, folder.parent / "peers", max(5, plan.runs // 4)),
        "cold": lambda: reading.cold(chain, max(3, plan.long_runs * 3)),
    }
    try:
        for section in (s for s in COPIES if s in plan.sections):
            report(f"{section}, d = {dim}")
            if COPIES[section] * tables.bytes(dim) > room:
                yield Figure(f"{section}_d{dim}", None, "x", why="the rows do not fit in free memory")
            else:
                yield from measures[section]()
    finally:
        chain.close()
        shutil.rmtree(folder, ignore_errors=True)
