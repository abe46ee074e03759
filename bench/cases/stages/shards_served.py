"""Roots on shards, served: a cold root's first answer, and a root under a limit of half its size."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from bench.cases.stages.home import Home
from bench.cases.stages.plan import Report
from bench.cases.stages.shard_memory import Served, measured
from bench.harness.report import Row
from hmi.core import ModelId, ModelRecord, Objective, ShardsRecord, now
from hmi.jobs.root.shard_answers import RetrievedTexts
from hmi.jobs.root.shard_root import shard_bytes
from hmi.stages.early_exit.evidence import Audits, upper_bound
from hmi.stages.elastic_shards.fidelity import ERROR, Fidelity, write_fidelity
from hmi.stages.elastic_shards.store import ShardStore, open_shards
from hmi.stages.elastic_shards.weights import ShardWeights, uniform
from hmi.stores.records.registry import Registry

AGREEMENT: Final = 0.9
"""The fraction of answers that must equal the full model's, which the measured model allows under load."""
BITS: Final = (4, 5, 6)
TEXTS, FEW = 150, 20
REPEATS: Final = 3
FIRST_GOAL, MEMORY_GOAL = 0.25, 0.5


def judge(folder: Path, store: ShardStore, record: ModelRecord, texts: RetrievedTexts) -> Fidelity:
    """Measure the agreement of the bits for one model, and keep it for the shards of `folder`."""
    found = dict[int, Audits]()
    answers = {}
    for bits in (32, *BITS):
        weights = ShardWeights(store, uniform(store, bits))
        answers[bits] = texts.answers(weights)
        weights.pipeline.close()
        if bits != 32:
            found[bits] = Audits(len(answers[bits]), int((answers[bits] != answers[32]).sum()))
    made = Fidelity({record.live.artefact: found})
    write_fidelity(folder, store, made)
    return made


@dataclass(frozen=True)
class Measured:
    """The model that is asked, and the root that it is on."""

    home: Home
    folder: Path
    record: ModelRecord
    texts: RetrievedTexts
    warm: str = ""
    """A model of another root that answers before memory is measured."""

    @property
    def model(self) -> ModelId:
        return ModelId(self.record.tenant, self.record.name)

    @property
    def lines(self) -> list[str]:
        return [str(p.item.request.text) for b in self.texts.batches for p in b.pieces][:TEXTS]

    def served(self, texts: list[str], root_bytes: int = 0, io_bytes_per_s: int = 0) -> Served:
        return measured(self.home.data, str(self.model), texts, self.warm, root_bytes, io_bytes_per_s)


def rows(
    registry: Registry, it: Measured, small: ModelId | None, disk: float, report: Report
) -> Iterator[Row]:
    """Measure one model of the root behind the disk (bytes a second) and without it."""
    about = ShardsRecord(bytes=shard_bytes(it.folder), models=1, created=now())
    registry.put_root(registry.root(it.record.live.root).model_copy(update={"shards": about}))
    report.say("shards: the agreement of bits")
    with open_shards(it.folder) as store:
        known, half = judge(it.folder, store, it.record, it.texts), store.full_bytes // 2
    for bits, audits in known.models[it.record.live.artefact].items():
        share, least = 1 - audits.disagreed / audits.seen, 1 - upper_bound(audits, ERROR)
        peer = f"at least {least:.3f} (95%)"
        yield Row(f"shards_agreement_{bits}bit", round(share, 4), "of answers", runs=audits.seen, peer=peer)
    for name, io in (("bucket", int(disk)), ("plain", 0)):
        report.say(f"shards: the first answer of a cold root, {name} disk")
        first: dict[float | None, list[float]] = {None: [], AGREEMENT: []}
        for _ in range(REPEATS):
            for agreement, seconds in first.items():
                _allow(registry, it.model, agreement)
                seconds.append(it.served(it.lines[:1], 0, io).first_s)
        whole, early = statistics.median(first[None]), statistics.median(first[AGREEMENT])
        peer, label = f"{early:.2f} s, full load {whole:.2f} s", f"shards_cold_first_{name}"
        yield Row(label, round(early / whole, 3), "of a full load", FIRST_GOAL, False, REPEATS, peer)
    report.say("shards: half of the memory")
    it = replace(it, warm="" if small is None else str(small))
    _allow(registry, it.model, None)
    full, exact = it.served(it.lines), it.served(it.lines[:FEW], half)
    _allow(registry, it.model, AGREEMENT)
    yield from _limited(full, it.served(it.lines, half), exact, half)


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
